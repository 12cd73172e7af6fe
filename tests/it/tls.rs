//! TLS: certificates as identities, who is refused, and what a reload changes.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rcgen::{DistinguishedName, DnType, DnValue};

use crate::support::{
    Broker, Client, Connect, Lost, PATIENCE, Packet, Setup, broker,
    certs::{Authority, Identity, named, tls_client, tls_client_of},
    client::publish_of,
    tools,
};

const ACL: &str = "pattern readwrite devices/%u/#\n";

/// A broker that asks for certificates of `ca`, with [`ACL`].
fn mutual(setup: Setup, ca: &Authority, more: &str) -> Broker {
    let server = ca.server();
    setup.file("acl", ACL);
    setup
        .config(&format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\ncertificate = {:?}\nkey = {:?}\nclient_ca = {:?}\n\
             require_client_certificate = true\n[auth]\nacl_file = \"acl\"\n{more}",
            server.certificate, server.key, ca.certificate
        ))
        .start()
}

fn setup() -> (Setup, Authority) {
    let setup = Setup::new();
    let ca = Authority::new(setup.dir(), "ca");
    (setup, ca)
}

fn connect(broker: &Broker, ca: &Authority, identity: &Identity, connect: &Connect) -> Client {
    Client::tls(broker.address(), tls_client(&ca.certificate, Some(identity))).login(connect)
}

/// Whether a client gets in: the CONNACK's code, or nothing where TLS refuses.
fn attempt(broker: &Broker, config: Arc<rustls::ClientConfig>, connect: &Connect) -> Option<u8> {
    match Client::tls(broker.address(), config).try_login(connect) {
        Ok(Packet::ConnAck { code, .. }) => Some(code),
        Err(Lost::TimedOut) => panic!("no answer"),
        _ => None,
    }
}

/// Two devices, each confined by the ACL to its own subtree, in every version of MQTT and of TLS (2 of the main job); a user name in CONNECT
/// does not override the certificate (D101).
#[test]
fn a_device_is_its_certificate() {
    let (setup, ca) = setup();
    let broker = mutual(setup, &ca, "");
    let (one, two) = (ca.client("device-1"), ca.client("device-2"));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for level in 3..=5 {
            let enter = |identity: &Identity, id: &str| {
                let config = tls_client_of(&ca.certificate, Some(identity), &[version]);
                let connect = Connect::new(level, id).login(if id == "b" { "device-1" } else { "ignored" }, "x");
                Client::tls(broker.address(), config).login(&connect)
            };
            let (mut a, mut b) = (enter(&one, "a"), enter(&two, "b"));
            a.subscribe("devices/device-1/#", 2);
            b.subscribe("devices/device-2/#", 2);
            let refusal = if level == 5 { 0x87 } else { 0x80 };
            assert_eq!(a.subscribe_all(&[("devices/device-2/#", 2)]), [refusal]);
            for qos in 0..3 {
                a.publish("devices/device-1/x", "own", qos);
                assert_eq!(a.text(), "own");
                let code = b.publish_code(&publish_of("devices/device-1/x", "foreign", qos));
                assert_eq!(code, if qos > 0 && level == 5 { 0x87 } else { 0 });
            }
            a.nothing();
            b.nothing();
        }
    }
}

/// No certificate, one from another authority, one that ran out, a self-made one: refused. The service goes on.
#[test]
fn a_wrong_certificate_is_refused() {
    let (setup, ca) = setup();
    let other = Authority::new(setup.dir(), "other");
    let broker = mutual(setup, &ca, "");
    let good = ca.client("device-1");
    let foreign = other.client("device-1-foreign");
    let expired = ca.expired_client("device-1");
    let trust = |identity| tls_client(&ca.certificate, identity);
    for config in [trust(None), trust(Some(&foreign)), trust(Some(&expired))] {
        assert_eq!(attempt(&broker, config, &Connect::v5("x")), None);
    }
    assert_eq!(attempt(&broker, trust(Some(&good)), &Connect::v5("x")), Some(0));
    // A client refuses a broker that it cannot trust.
    assert_eq!(attempt(&broker, tls_client(&other.certificate, Some(&good)), &Connect::v5("x")), None);
    broker.wait_log("why", |line| line.contains("connection refused") && line.contains("ertificate"));
}

/// The same with the real clients over mutual TLS.
#[test]
fn mosquitto_clients_work_over_mutual_tls() {
    let (setup, ca) = setup();
    let other = Authority::new(setup.dir(), "other");
    let broker = mutual(setup, &ca, "");
    let (one, two, foreign) = (ca.client("device-1"), ca.client("device-2"), other.client("foreign"));
    let args = |ca: &Path, identity: Option<&Identity>, rest: &[&str]| {
        let mut args = vec!["--cafile".to_owned(), ca.display().to_string()];
        if let Some(identity) = identity {
            args.extend(["--cert".into(), identity.certificate.display().to_string()]);
            args.extend(["--key".into(), identity.key.display().to_string()]);
        }
        args.extend(rest.iter().map(|arg| (*arg).to_owned()));
        args
    };
    for version in ["mqttv311", "mqttv5"] {
        let subscribe = ["-t", "devices/device-1/#", "-q", "2", "-V", version];
        let mut sub = tools::MosquittoSub::subscribed(broker.port(), args(&ca.certificate, Some(&one), &subscribe));
        for qos in ["0", "1", "2"] {
            let publish = |identity, topic| {
                let rest = ["-t", topic, "-m", "hello", "-q", qos, "-V", version];
                tools::mosquitto_pub(broker.port(), args(&ca.certificate, identity, &rest))
            };
            assert!(publish(Some(&one), "devices/device-1/x").status.success());
            assert_eq!(sub.message(), format!("devices/device-1/x {qos} 0 hello"));
            publish(Some(&two), "devices/device-1/stolen");
            for wrong in [None, Some(&foreign)] {
                assert!(!publish(wrong, "devices/device-1/x").status.success());
            }
            assert!(publish(Some(&one), "devices/device-1/end").status.success());
            assert_eq!(sub.message(), format!("devices/device-1/end {qos} 0 hello"));
        }
    }
}

/// The same with Paho for Python.
#[test]
fn paho_works_over_mutual_tls() {
    let (setup, ca) = setup();
    let broker = mutual(setup, &ca, "");
    let one = ca.client("device-1");
    for version in ["4", "5"] {
        let files = [&ca.certificate, &one.certificate, &one.key].map(|path| path.display().to_string());
        let tls = ["--ca", &files[0], "--cert", &files[1], "--key", &files[2]];
        tools::paho(broker.port(), ["--version", version, "--prefix", "devices/device-1/"].iter().chain(&tls));
    }
}

/// `pinnace certs demo` makes what the other clients need; it replaces nothing; keys are for their owner alone.
#[test]
fn the_demo_certificates_work() {
    use std::os::unix::fs::PermissionsExt;
    let setup = Setup::new();
    let dir = setup.dir().join("demo");
    let demo = || broker::run(["certs".as_ref(), "demo".as_ref(), dir.as_os_str()]);
    assert!(demo().status.success());
    let mut names: Vec<_> =
        std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let expected = [
        "ca.key",
        "ca.pem",
        "device-1.key",
        "device-1.pem",
        "device-2.key",
        "device-2.pem",
        "server.key",
        "server.pem",
    ];
    assert_eq!(names, expected);
    for name in names.iter().filter(|name| name.ends_with(".key")) {
        assert_eq!(std::fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
    let before = std::fs::read(dir.join("ca.pem")).unwrap();
    assert!(!demo().status.success(), "nothing is replaced");
    assert_eq!(std::fs::read(dir.join("ca.pem")).unwrap(), before);
    setup.file("acl", ACL);
    let broker = setup
        .config(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\ncertificate = \"demo/server.pem\"\nkey = \"demo/server.key\"\n\
             client_ca = \"demo/ca.pem\"\nrequire_client_certificate = true\n[auth]\nacl_file = \"acl\"\n",
        )
        .start();
    for device in ["device-1", "device-2"] {
        let file = |name: String| dir.join(name).display().to_string();
        let topic = format!("devices/{device}/x");
        let tls = [
            "--cafile".into(),
            file("ca.pem".into()),
            "--cert".into(),
            file(format!("{device}.pem")),
            "--key".into(),
            file(format!("{device}.key")),
        ];
        let with = |rest: [&str; 2]| tls.iter().cloned().chain(rest.map(str::to_owned)).collect::<Vec<_>>();
        let mut sub = tools::MosquittoSub::subscribed(broker.port(), with(["-t", &topic]));
        tools::publish(broker.port(), with(["-t", &topic]).into_iter().chain(["-m".into(), device.into()]));
        assert_eq!(sub.message(), format!("{topic} 0 0 {device}"));
    }
}

/// Only TLS 1.2 and 1.3 (D96).
#[test]
fn old_versions_of_tls_are_refused() {
    let (setup, ca) = setup();
    let broker = mutual(setup, &ca, "");
    // A ClientHello of TLS 1.0 or 1.1, by hand: no library still says it.
    for minor in [1u8, 2] {
        let mut hello = vec![3, minor];
        hello.extend_from_slice(&[0x42; 32]);
        hello.extend_from_slice(&[0, 0, 4, 0xc0, 0x13, 0x00, 0x2f, 1, 0]);
        let mut bytes = vec![0x16, 3, 1, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
        bytes.extend_from_slice(&hello);
        let mut client = Client::tcp(broker.address());
        client.send(&bytes);
        let alert = client.rest_of_stream();
        assert!(alert.is_empty() || alert[0] == 0x15, "an alert or the end: {alert:02x?}");
    }
    let one = ca.client("device-1");
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        assert_eq!(
            attempt(&broker, tls_client_of(&ca.certificate, Some(&one), &[version]), &Connect::v4("x")),
            Some(0)
        );
    }
}

impl Client {
    /// All bytes up to the end of the stream.
    fn rest_of_stream(&self) -> Vec<u8> {
        use std::io::Read;
        let mut socket = self.socket();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut bytes = Vec::new();
        match socket.read_to_end(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("the connection stays open"),
            _ => bytes,
        }
    }
}

/// Certificates that name nobody, or oddly, or twice, let nobody in and break nothing (D102).
#[test]
fn odd_certificates_are_refused() {
    let (setup, ca) = setup();
    let mut broker = mutual(setup, &ca, "");
    let mut organisation = DistinguishedName::new();
    organisation.push(DnType::OrganizationName, "no common name");
    let mut bmp = DistinguishedName::new();
    bmp.push(DnType::CommonName, DnValue::BmpString("device-1".try_into().unwrap()));
    let cases: [(&str, DistinguishedName); 5] = [
        ("empty", DistinguishedName::new()),
        ("organisation", organisation),
        ("blank", named("")),
        ("long", named(&"x".repeat(2_000))),
        ("control", named("a\nb")),
    ];
    for (name, subject) in cases {
        let identity = ca.client_of(name, subject);
        let code = attempt(&broker, tls_client(&ca.certificate, Some(&identity)), &Connect::v5("x"));
        assert_ne!(code, Some(0), "{name}");
    }
    // Another encoding of a plain name: taken for that name, or refused, but nothing else.
    let identity = ca.client_of("bmp", bmp);
    if let Some(0) = attempt(&broker, tls_client(&ca.certificate, Some(&identity)), &Connect::v5("x")) {
        let mut client = connect(&broker, &ca, &identity, &Connect::v5("x"));
        assert_eq!(client.publish_code(&publish_of("devices/device-2/x", "x", 1)), 0x87);
    }
    assert!(broker.is_running());
    connect(&broker, &ca, &ca.client("device-1"), &Connect::v5("x")).ping();
}

/// A reload takes up new certificates and authorities: those of a removed authority are refused (D98); who is connected stays (D100). A bad
/// file changes nothing.
#[test]
fn a_reload_changes_the_authorities() {
    let (setup, ca) = setup();
    let next = Authority::new(setup.dir(), "next");
    let server = ca.server();
    std::fs::copy(&ca.certificate, setup.dir().join("clients.pem")).unwrap();
    let broker = setup
        .config(&format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[listener.tls]\ncertificate = {:?}\nkey = {:?}\nclient_ca = \"clients.pem\"\n\
             require_client_certificate = true\n",
            server.certificate, server.key
        ))
        .start();
    let (old, new) = (ca.client("old"), next.client("new"));
    let enters = |identity: &Identity| attempt(&broker, tls_client(&ca.certificate, Some(identity)), &Connect::v5(""));
    let old_config = tls_client(&ca.certificate, Some(&old));
    let mut stays = Client::tls(broker.address(), old_config.clone()).login(&Connect::v5("stays"));
    stays.ping();
    assert_eq!((enters(&old), enters(&new)), (Some(0), None));
    broker.file("clients.pem", "no certificate");
    assert!(broker.reload().contains("clients.pem"));
    assert_eq!((enters(&old), enters(&new)), (Some(0), None));
    broker.file("clients.pem", std::fs::read(&next.certificate).unwrap());
    broker.reload();
    assert_eq!((enters(&old), enters(&new)), (None, Some(0)));
    // Nor by the session that the client remembers from before (D103).
    assert_eq!(attempt(&broker, old_config, &Connect::v5("resumed")), None);
    stays.ping();
}

/// Handshakes that stop after their beginning delay nobody and end by themselves (D104, D16); MQTT on a TLS port is closed fast (D86).
#[test]
fn slow_handshakes_delay_nobody() {
    let (setup, ca) = setup();
    let broker = mutual(setup, &ca, "[session]\nconnect_timeout_secs = 2\n");
    let held: Vec<Client> = (0..100)
        .map(|n| {
            let mut client = Client::tcp(broker.address());
            client.send(&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..n % 11]);
            client
        })
        .collect();
    let began = Instant::now();
    let one = ca.client("device-1");
    connect(&broker, &ca, &one, &Connect::v5("x")).ping();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    for client in held {
        client.rest_of_stream();
    }
    // A handshake that is done, and then no CONNECT.
    let mut silent = Client::tls(broker.address(), tls_client(&ca.certificate, Some(&one)));
    silent.send(&[0x10]);
    assert!(matches!(silent.try_receive(PATIENCE), Err(Lost::Closed)));
    let from = broker.log_len();
    let mut plain = Client::tcp(broker.address());
    plain.send(&Connect::v4("x").encode());
    plain.rest_of_stream();
    broker.wait_log_from(from, "a refused connection", |line| line.contains("connection refused"));
}

/// Large messages and many small ones over TLS, where readiness of the socket is not readiness of plaintext.
#[test]
fn bulk_passes_over_tls() {
    let (setup, ca) = setup();
    let broker = mutual(setup, &ca, "");
    let one = ca.client("device-1");
    let mut receiver = connect(&broker, &ca, &one, &Connect::v5("receiver"));
    receiver.subscribe("devices/device-1/#", 1);
    let mut sender = connect(&broker, &ca, &one, &Connect::v5("sender"));
    for size in [0, 1, 16_383, 16_384, 16_385, 100_000, 1_500_000] {
        let payload: Vec<u8> = (0..size).map(|n| n as u8).collect();
        sender.publish("devices/device-1/x", &payload, 1);
        assert_eq!(receiver.message().payload, payload);
    }
    let burst = (0..500u16)
        .flat_map(|n| crate::support::wire::publish(true, &publish_of("devices/device-1/x", n.to_be_bytes(), 0)));
    sender.send(&burst.collect::<Vec<u8>>());
    for n in 0..500u16 {
        assert_eq!(receiver.message().payload, n.to_be_bytes());
    }
}
