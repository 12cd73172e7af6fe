//! Every line reads as it was written, and the lines of old exports stay readable.

use super::*;

fn item(line: &str) -> Result<Option<Item>, String> {
    serde_json::from_str::<Line>(line).map_err(|error| error.to_string())?.into_item()
}

/// What was exported is in files: these lines stay readable for ever, and are written like this.
#[test]
fn the_lines_are_these() {
    let lines = [
        r#"{"kind":"time","time":7,"wall":9}"#,
        r#"{"kind":"session","id":1,"client_id":"c","username":"u","expiry_secs":4294967295,"connected":false,"disconnected_at":7,"sent_until":3,"subscriptions":[{"filter":"$share/g/a/#","qos":2,"no_local":true,"retain_as_published":true,"retain_handling":1,"subscription_id":5}],"received":[9],"queue":{"head":2,"settled":[[4,5]],"trimmed":1,"settled_bytes":300,"in_flight":[{"seq":3,"packet_id":7,"released":true}]}}"#,
        r#"{"kind":"group","id":2,"share":"g","filter":"a/#","sent_until":18446744073709551615,"queue":{"head":0,"settled":[],"trimmed":0,"settled_bytes":0,"in_flight":[{"seq":1,"holder":1,"packet_id":0,"released":false}]}}"#,
        r#"{"kind":"body","id":3,"message":{"topic":"a","payload":"AAH/","qos":1,"retain":true,"properties":[{"user_property":["k","v"]},{"payload_format_indicator":true},{"content_type":"text/plain"},{"response_topic":"r"},{"correlation_data":"/w=="},{"user_property":["k","w"]}],"expires_at":9,"publisher":1}}"#,
        r#"{"kind":"entry","queue":1,"seq":3,"qos":2,"retain":false,"subscription_ids":[5],"queue_bytes":500,"body":3}"#,
        r#"{"kind":"entry","queue":2,"seq":1,"qos":1,"retain":true,"publisher":4,"queue_bytes":100,"message":{"topic":"a","payload":"","qos":0,"retain":false}}"#,
        r#"{"kind":"retained","message":{"topic":"r","payload":"eA==","qos":0,"retain":true},"author":{"client_id":"c","username":"u"}}"#,
        r#"{"kind":"retained","message":{"topic":"r","payload":"eA==","qos":0,"retain":true}}"#,
        r#"{"kind":"will","session":1,"client_id":"c","username":"u","delay_secs":1,"expiry_secs":2,"session_expiry_secs":3,"due_at":4,"message":{"topic":"w","payload":"eA==","qos":2,"retain":false}}"#,
    ];
    for line in lines {
        let read = item(line).unwrap().unwrap();
        assert_eq!(serde_json::to_string(&Line::from(read)).unwrap(), line);
    }
    let header = format!(
        r#"{{"kind":"header","format":"pinnace-export","version":1,"broker":"{}","next_id":5}}"#,
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(serde_json::to_string(&Line::header(5)).unwrap(), header);
    assert_eq!(serde_json::from_str::<Line>(&header).unwrap().as_header(), Ok(5));
    assert_eq!(item(r#"{"kind":"end"}"#), Ok(None));
}

/// What may be left out by those who write lines by hand.
#[test]
fn a_short_line_means_what_nothing_says() {
    let short = r#"{"kind":"session","id":1,"client_id":"c","expiry_secs":1,"connected":false,"disconnected_at":0,"sent_until":0,"subscriptions":[{"filter":"a","qos":0}]}"#;
    let Ok(Some(Item::Record(Recovered::Session { session, subscriptions, received, log }))) = item(short) else {
        panic!("a session")
    };
    assert_eq!((session.username, received, log), (None, vec![], RecoveredLog::default()));
    let options = SubscriptionOptions {
        qos: QoS::AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let expected = StoredSubscription { filter: "a".into(), options, subscription_id: None, replay: None };
    assert_eq!(subscriptions, [expected]);
}

#[test]
fn what_is_wrong_with_a_line_is_told() {
    let message =
        |fields: &str| format!(r#"{{"kind":"body","id":1,"message":{{"topic":"a","payload":"","qos":0{fields}}}}}"#);
    let cases = [
        ("{}".to_owned(), "missing field `kind`"),
        (r#"{"kind":"queue"}"#.to_owned(), "unknown variant `queue`"),
        (r#"{"kind":"body","id":1}"#.to_owned(), "missing field `message`"),
        (message(r#","colour":1"#), "unknown field `colour`"),
        (message("").replace(r#""qos":0"#, r#""qos":3"#), "the QoS is 3"),
        (message("").replace(r#""payload":"""#, r#""payload":"?""#), "no base64"),
        (message("").replace(r#""topic":"a""#, r#""topic":"a/#""#), "topic \"a/#\""),
        (message(r#","properties":[{"response_topic":"+"}]"#), "properties: "),
        (message(r#","properties":[{"content_type":"a"},{"content_type":"b"}]"#), "properties: "),
        (message(r#","properties":[{"topic_alias":1}]"#), "unknown variant `topic_alias`"),
        (r#"{"kind":"entry","queue":1,"seq":1,"qos":1,"retain":false,"queue_bytes":1}"#.to_owned(), "either a message or a body"),
        (
            r#"{"kind":"entry","queue":1,"seq":1,"qos":1,"retain":false,"queue_bytes":1,"body":1,"subscription_ids":[0]}"#.to_owned(),
            "0 is no subscription identifier",
        ),
        (serde_json::to_string(&Line::header(1)).unwrap(), "a second header"),
    ];
    for (line, expected) in cases {
        let problem = item(&line).unwrap_err();
        assert!(problem.contains(expected), "{line}: {problem}");
    }
    let other = Line::Header { format: FORMAT.into(), version: 2, broker: "9.0.0".into(), next_id: 1 };
    assert!(other.as_header().unwrap_err().contains("version 2, of pinnace 9.0.0"));
    assert!(Line::End.as_header().unwrap_err().contains("header"));
}
