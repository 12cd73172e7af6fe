//! Every record reads as it was written, and the bytes on disks stay readable.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_record_reads_as_it_was_written(
        numbers in any::<(u64, u64, u64, u32, u32, u16)>(),
        flags in any::<(bool, bool, bool)>(),
        texts in any::<(String, Option<String>)>(),
        topic in "[a-zé/]{1,300}",
        bytes in any::<(Vec<u8>, Vec<u8>)>(),
        ids in prop::collection::vec(any::<u32>(), 0..4),
        ranges in prop::collection::vec((2..u64::MAX >> 8, 0..u64::MAX >> 8), 0..4),
        choice in 0..3usize,
    ) {
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][choice];
        let message = Message {
            topic: TopicName::parse(&topic).unwrap(),
            payload: bytes.0.into(),
            qos,
            retain: flags.0,
            properties: bytes.1.into(),
            expires_at: flags.1.then_some(Timestamp(numbers.0)),
            publisher: numbers.1 % UNSTORED,
        };
        check(&message, put_message, get_message);
        let author = Author { username: texts.1.as_deref().map(Arc::from), client_id: texts.0.as_str().into() };
        for author in [None, Some(author)] {
            let put = |out: &mut Vec<u8>, one: &(Message, Option<Author>)| put_retained(out, &one.0, one.1.as_ref());
            check(&(message.clone(), author), put, get_retained);
        }
        let session = StoredSession {
            id: numbers.0,
            client_id: texts.0.clone(),
            username: texts.1.clone(),
            expiry_secs: numbers.3,
            connected: flags.0,
            disconnected_at: Timestamp(numbers.1),
            sent_until: numbers.2,
        };
        check(&session, put_session, |bytes| get_session(numbers.0, bytes));
        let options = SubscriptionOptions {
            qos,
            no_local: flags.0,
            retain_as_published: flags.1,
            retain_handling: [RetainHandling::Send, RetainHandling::SendIfNew, RetainHandling::Never][choice],
        };
        let subscription_id = Some(numbers.3).filter(|&id| id != 0);
        let replay = flags.2.then(|| Place::at(&message.topic));
        let subscription = StoredSubscription { filter: texts.0.clone(), options, subscription_id, replay };
        check(&subscription, put_subscription, |bytes| get_subscription(&texts.0, bytes));
        let will = StoredWill {
            session: numbers.0,
            client_id: texts.0.clone(),
            username: texts.1.clone(),
            message: message.clone(),
            delay_secs: numbers.3,
            expiry_secs: flags.2.then_some(numbers.4),
            session_expiry_secs: numbers.4,
            due_at: flags.0.then_some(Timestamp(numbers.2)),
        };
        check(&will, put_will, |bytes| get_will(numbers.0, bytes));
        let group = StoredGroup { log: numbers.0, share: texts.0, filter: topic, sent_until: numbers.1 };
        check(&group, put_group, |bytes| get_group(numbers.0, bytes));
        let mut state =
            LogState { head: numbers.0 >> 4, settled: Vec::new(), trimmed: numbers.1, settled_bytes: numbers.2 };
        for (gap, more) in ranges {
            let from = state.highest_settled() + gap;
            state.settled.push((from, from + more));
        }
        check(&state, put_log_state, get_log_state);
        let garbage = Garbage { log: numbers.0, from: numbers.1, to: numbers.2, state };
        check(&garbage, put_garbage, |bytes| get_garbage(numbers.0, bytes));
        let step = if flags.0 { Step::Sent } else { Step::Released };
        let open = OpenEntry { seq: numbers.0, holder: numbers.1, packet_id: numbers.5, step };
        check(&open, put_open, |bytes| get_open(numbers.0, bytes));
        let publisher = if flags.2 { numbers.1 } else { 0 };
        let subscription_ids = ids.into();
        let head = EntryHead { qos, retain: flags.0, subscription_ids, publisher, log_bytes: numbers.1 };
        let entry = (head.clone(), EntryMessage::Inline(message.clone()));
        check(&entry, |out, (head, _)| put_entry(out, head, EntryBody::Message(&message)), get_entry);
        let entry = (head, EntryMessage::Shared(numbers.2));
        check(&entry, |out, (head, _)| put_entry(out, head, EntryBody::Shared(numbers.2)), get_entry);
    }

    #[test]
    fn what_is_no_record_is_refused_without_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        for version in [V1, V2, V2 + 1] {
            if let Some(first) = bytes.first_mut() {
                *first = version;
            }
            let read = [
                get_nothing(&bytes).is_ok(),
                get_id(&bytes).is_ok(),
                get_count(&bytes).is_ok(),
                get_time(&bytes).is_ok(),
                get_session(1, &bytes).is_ok(),
                version != V2 && get_subscription("f", &bytes).is_ok(),
                get_will(1, &bytes).is_ok(),
                get_group(1, &bytes).is_ok(),
                version != V2 && get_log_state(&bytes).is_ok(),
                version != V2 && get_retained(&bytes).is_ok(),
                get_open(1, &bytes).is_ok(),
                get_garbage(1, &bytes).is_ok(),
                get_message(&bytes).is_ok(),
                get_entry(&bytes).is_ok(),
                get_entry_head(&bytes).is_ok(),
            ];
            prop_assert!(version == V1 || !read.contains(&true), "a later version is not guessed at");
        }
    }
}

/// The layout is on disks: these bytes stay readable for ever.
#[test]
fn the_stored_bytes_are_these() {
    let message = Message {
        topic: TopicName::parse("a/b").unwrap(),
        payload: Box::new([9, 8]),
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: Box::new([1, 1]),
        expires_at: Some(Timestamp(300)),
        publisher: 5,
    };
    let bytes = [1, 0b1101, 5, 0xAC, 2, 3, b'a', b'/', b'b', 2, 1, 1, 9, 8];
    assert_eq!(get_message(&bytes), Ok(message.clone()));
    check(&message, |out, _| out.extend_from_slice(&bytes), get_message);
    assert_eq!(get_retained(&bytes), Ok((message.clone(), None)));
    let author = |username| Some(Author { username, client_id: "id".into() });
    let by_ann = [&[2, 1, 3, b'a', b'n', b'n', 2, b'i', b'd'], &bytes[..]].concat();
    assert_eq!(get_retained(&by_ann), Ok((message.clone(), author(Some("ann".into())))));
    let anonymous = [&[2, 0, 2, b'i', b'd'], &bytes[..]].concat();
    assert_eq!(get_retained(&anonymous), Ok((message.clone(), author(None))));
    for publisher in [UNSTORED, u64::MAX] {
        let mut bytes = Vec::new();
        put_message(&mut bytes, &Message { publisher, ..message.clone() });
        assert_eq!(get_message(&bytes), Ok(Message { publisher: 0, ..message.clone() }), "{publisher}");
    }
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: true,
        retain_as_published: false,
        retain_handling: RetainHandling::Never,
    };
    let subscription = StoredSubscription { filter: "#".into(), options, subscription_id: Some(200), replay: None };
    for bytes in [&[1, 0x25, 0xC8, 1][..], &[2, 0x25, 0xC8, 1, 0]] {
        assert_eq!(get_subscription("#", bytes), Ok(subscription.clone()));
    }
    let replay = Some(Place::at(&message.topic));
    assert_eq!(
        get_subscription("#", &[2, 0x25, 0xC8, 1, 1, 3, b'a', b'/', b'b']),
        Ok(StoredSubscription { replay, ..subscription })
    );
    let subscription_ids = [7].into_iter().collect();
    let head = EntryHead { qos: QoS::ExactlyOnce, retain: false, subscription_ids, publisher: 0, log_bytes: 0 };
    assert_eq!(get_entry(&[1, 0b1010, 1, 7, 6]), Ok((head.clone(), EntryMessage::Shared(6))));
    let counted = EntryHead { log_bytes: 300, publisher: 9, ..head };
    assert_eq!(get_entry(&[1, 0b11_1010, 0xAC, 2, 9, 1, 7, 6]), Ok((counted, EntryMessage::Shared(6))));
    let state = LogState { head: 3, settled: vec![(5, 5), (8, 10)], trimmed: 1, settled_bytes: 0 };
    assert_eq!(get_log_state(&[1, 1, 3, 2, 2, 0, 3, 2]), Ok(state.clone()));
    let counted = LogState { settled_bytes: 200, ..state };
    assert_eq!(get_log_state(&[2, 1, 0xC8, 1, 3, 2, 2, 0, 3, 2]), Ok(counted));
    let open = OpenEntry { seq: 4, holder: 0, packet_id: 200, step: Step::Released };
    assert_eq!(get_open(4, &[1, 0, 200, 1, 1]), Ok(open));
    assert_eq!(get_id(&[1, 0x80, 8]), Ok(1024));
    assert_eq!(get_time(&[1, 5, 0x80, 8]), Ok(StoredTime { time: Timestamp(5), wall: Timestamp(1024) }));
}

#[test]
fn damage_is_called_by_its_name() {
    let cases: [(&[u8], Unreadable); 7] = [
        (&[], Unreadable::Short),
        (&[1], Unreadable::Short),
        (&[2, 0], Unreadable::Version(2)),
        (&[1, 0x80], Unreadable::Short),
        (&[1, 5, 5], Unreadable::Trailing(1)),
        (&[1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], Unreadable::Invalid("number")),
        (&[1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255], Unreadable::Invalid("number")),
    ];
    for (bytes, expected) in cases {
        assert_eq!(get_id(bytes), Err(expected), "{bytes:?}");
    }
    // A length beyond the record takes no memory.
    assert_eq!(get_group(1, &[1, 255, 255, 255, 255, 255, 255, 255, 255, 127]), Err(Unreadable::Short));
    assert_eq!(get_log_state(&[1, 0, 5, 1, 1, 0]), Err(Unreadable::Invalid("range")), "it touches the head");
}

/// Reads what it wrote, and nothing that is cut short or goes on.
fn check<T: PartialEq + std::fmt::Debug>(
    value: &T,
    put: impl Fn(&mut Vec<u8>, &T),
    get: impl Fn(&[u8]) -> Result<T, Unreadable>,
) {
    let mut bytes = Vec::new();
    put(&mut bytes, value);
    assert_eq!(get(&bytes).as_ref(), Ok(value));
    assert_eq!(get(&bytes[..0]), Err(Unreadable::Short));
}
