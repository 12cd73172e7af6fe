//! Configurations that are loaded or refused: each layer, each kind of fault, where it stands and what it says.

use std::fs;
use std::path::Path;

use super::*;

/// What a run is given, and what is expected of it.
#[derive(Default)]
struct Case<'a> {
    file: Option<&'a str>,
    env: &'a [(&'a str, &'a str)],
    flags: Flags,
}

fn file(text: &str) -> Case<'_> {
    Case { file: Some(text), ..Case::default() }
}

fn env<'a>(env: &'a [(&'a str, &'a str)]) -> Case<'a> {
    Case { env, ..Case::default() }
}

/// Loads the case with a home directory, and with the memory store where nothing else is said (every build can serve it).
fn loaded(case: Case<'_>) -> Result<Loaded, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.toml");
    let file = case.file.map(|text| {
        fs::write(&path, text).unwrap();
        path.as_path()
    });
    let mut env = vec![("HOME".into(), "/home/x".into())];
    env.extend(case.env.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))));
    let flags = Flags { durability: case.flags.durability.or(Some(Durability::Memory)), ..case.flags };
    let strip = |errors: ConfigErrors| errors.to_string().replace(&format!("{}/", dir.path().display()), "");
    load(file, env.into_iter(), flags).map_err(strip)
}

#[test]
fn what_is_wrong_is_refused_with_its_place_and_what_to_do() {
    let cases: &[(Case<'_>, &[&str])] = &[
        (file("[sesion]\n"), &["p.toml:1:2: sesion: unknown key; did you mean session?"]),
        (
            file("[session]\n  recieve_maximum = 3\n"),
            &["p.toml:2:3: session.recieve_maximum: unknown key; did you mean receive_maximum?"],
        ),
        (file("[session]\nréceive = 1\n"), &["p.toml:2:1: syntax"]),
        (file("[session]\ndurability = \"os\"\n"), &["did you mean storage.durability?"]),
        (file("[session]\nxyzzy = 1\n"), &["p.toml:2:1: session.xyzzy: unknown key; known here: maximum_qos"]),
        (
            file("[session]\nreceive_maximum = '1883'\n"),
            &["p.toml:2:19: session.receive_maximum: invalid type: string \"1883\", expected a nonzero u16"],
        ),
        (file("[session]\nreceive_maximum = 70000\n"), &["expected a nonzero u16"]),
        (file("[session]\nreceive_maximum = 0\n"), &["expected a nonzero u16"]),
        (file("[session]\nreceive_maximum = 1.5\n"), &["expected a nonzero u16"]),
        (file("[session]\nmax_queued_bytes = -1\n"), &["p.toml:2:20: session.max_queued_bytes: invalid value"]),
        (file("[session]\nreceive_maximum = [1]\n"), &["expected a single value"]),
        (file("[session]\nreceive_maximum = 2020-01-01\n"), &["expected a single value"]),
        (file("session = 1\n"), &["p.toml:1:11: session: expected a table: [session]"]),
        (file("[[session]]\n"), &["session: expected a table: [session]"]),
        (file("[listener]\n"), &["listener: expected a list of tables: [[listener]]"]),
        (file("listener = [1]\n"), &["expected a list of tables"]),
        (file("listener = []\n"), &["p.toml", "no listener"]),
        (
            file("[storage]\ndurability = 'fsnc'\n"),
            &["p.toml:2:14: storage.durability: unknown variant", "mean fsync?"],
        ),
        (
            file("[[durability.rule]]\nfilter = 'a/#/b'\nlevel = 'os'\n"),
            &["p.toml:2:10: durability.rule[0].filter: \"a/#/b\" is no topic filter: `#` stands only at the end"],
        ),
        (
            file("[[durability.rule]]\nfilter = '$share/g/a/#'\nlevel = 'os'\n"),
            &["p.toml:2:10: durability.rule[0].filter: ", "write \"a/#\""],
        ),
        (
            file("[[durability.rule]]\nfilter = 'a'\nlevel = 'memory'\n"),
            &["p.toml:3:9: durability.rule[0].level: unknown variant `memory`, expected `os` or `fsync`"],
        ),
        (file("[[durability.rule]]\nfilter = 'a'\n"), &["p.toml:1:1: durability.rule[0]: missing field `level`"]),
        (file("[[durability.rules]]\n"), &["durability.rules: unknown key; did you mean rule?"]),
        (
            file("[[durability.rule]]\nfilter = 'a'\nlevel = 'os'\n"),
            &["p.toml:1:1: durability.rule: nothing is stored with storage.durability = \"memory\""],
        ),
        (file("[auth]\nclient_id_with_slash_fills_pattern = 'yes'\n"), &["expected a boolean"]),
        (file("[auth]\npassword_file = ''\n"), &["p.toml:2:17: auth.password_file: the path is empty"]),
        (file("[[listener]]\naddress = 'localhost:1883'\n"), &["p.toml:2:11: listener[0].address: ", "socket address"]),
        (
            file("[[listener]]\n[listener.tls]\nkey = 'k'\n"),
            &["p.toml:2:11: listener[0].tls: missing field `certificate`"],
        ),
        (file("[[listener]]\ntls = { certificate = 'c' }\n"), &["listener[0].tls: missing field `key`"]),
        (
            file("[[listener]]\naddress='127.0.0.1:1'\n[[listener]]\nadress='127.0.0.1:2'\n"),
            &["p.toml:4:1: listener[1].adress: unknown key; did you mean address?"],
        ),
        (file("[session\n"), &["p.toml:1:9: "]),
        (
            file("[server]\nx = 1\n\n worker_threads = 18446744073709551616\n"),
            &["p.toml:4:19: server.worker_threads: "],
        ),
        (file("[log]\nlevel = 'info'\nlevel = 'debug'\n"), &["p.toml:3:1: log.level: duplicate key"]),
        (file("[log]\nlevel = '=noise='\n"), &["p.toml:2:9: log.level: ", "write a level such as info"]),
        (file("[a]\n[b]\n[session]\nc = 1\n"), &["p.toml:1:2: a", "p.toml:2:2: b", "p.toml:4:1: session.c"]),
        (
            env(&[("PINNACE__SESSION__RECEIVE_MAXIMUN", "3")]),
            &["PINNACE__SESSION__RECEIVE_MAXIMUN: unknown variable; did you mean PINNACE__SESSION__RECEIVE_MAXIMUM?"],
        ),
        (env(&[("PINNACE_SESSION_RECEIVE_MAXIMUM", "3")]), &["did you mean PINNACE__SESSION__RECEIVE_MAXIMUM?"]),
        (env(&[("PINNACE__session__RECEIVE_MAXIMUM", "3")]), &["did you mean PINNACE__SESSION__RECEIVE_MAXIMUM?"]),
        (
            env(&[("PINNACE__SESSION__RECEIVE_MAXIMUM", "many")]),
            &["PINNACE__SESSION__RECEIVE_MAXIMUM: session.receive_maximum: `many` is not a whole number"],
        ),
        (env(&[("PINNACE__SESSION__RECEIVE_MAXIMUM", "0")]), &["expected a nonzero u16"]),
        (env(&[("PINNACE__SESSION__RECEIVE_MAXIMUM", "")]), &["the value is empty; unset the variable"]),
        (env(&[("PINNACE__AUTH__CLIENT_ID_WITH_SLASH_FILLS_PATTERN", "1")]), &["`1` is neither true nor false"]),
        (
            env(&[("PINNACE__DURABILITY__RULE__0__LEVEL", "os")]),
            &["[[durability.rule]] is a list, which no variable can set; use the file"],
        ),
        (
            env(&[("PINNACE__LISTENER__0__ADDRESS", "127.0.0.1:1")]),
            &["[[listener]] is a list, which no variable can set"],
        ),
        (env(&[("PINNACE__A", "1"), ("PINNACE__B", "1")]), &["PINNACE__A: ", "\nPINNACE__B: "]),
        (
            Case { file: Some("[x]\n"), env: &[("PINNACE__Y", "1")], ..Case::default() },
            &["p.toml:1:2: x: ", "\nPINNACE__Y: "],
        ),
    ];
    for (index, (case, parts)) in cases.iter().enumerate() {
        let case = Case { file: case.file, env: case.env, flags: case.flags.clone() };
        let errors = loaded(case).expect_err(&format!("case {index} {parts:?} is refused"));
        for part in *parts {
            let part = if *part == "p.toml:2:1: syntax" { "p.toml:2:" } else { part };
            assert!(errors.contains(part), "case {index}: {part:?} in {errors:?}");
        }
    }
}

#[test]
fn what_cannot_be_combined_is_refused() {
    let tls = "[listener.tls]\ncertificate = 'c'\nkey = 'k'\n";
    let outside = "[[listener]]\naddress = '0.0.0.0:1883'\n";
    let loopback = "[[listener]]\naddress = '127.0.0.1:1883'\n";
    let cases: &[(String, Option<&str>)] = &[
        (outside.into(), Some("p.toml:2:11: listener[0].address: 0.0.0.0:1883 is reachable from outside")),
        ("[[listener]]\naddress = '[::]:1883'\n".into(), Some("allow_anonymous = true to let everybody in")),
        ("[[listener]]\naddress = '192.0.2.1:1883'\n".into(), Some("reachable from outside")),
        ("[[listener]]\naddress = '[::ffff:127.0.0.1]:1883'\n".into(), Some("reachable from outside")),
        (format!("{outside}{tls}"), Some("reachable from outside")),
        (format!("{outside}allow_anonymous = true\n"), None),
        (format!("{outside}allow_anonymous = false\n"), Some("nobody could log in")),
        (format!("{outside}[auth]\npassword_file = 'p'\n"), None),
        (format!("{outside}{tls}client_ca = 'a'\nrequire_client_certificate = true\n"), None),
        (format!("{loopback}{tls}"), None),
        (format!("{loopback}allow_anonymous = false\n"), Some("nobody could log in")),
        (
            format!("{loopback}{tls}require_client_certificate = true\n"),
            Some("p.toml:6:30: listener[0].tls.require_client_certificate: needs client_ca"),
        ),
        (
            format!("{loopback}allow_anonymous = true\n{tls}client_ca = 'a'\nrequire_client_certificate = true\n"),
            Some("contradicts allow_anonymous"),
        ),
        (format!("{loopback}{loopback}"), Some("p.toml:4:11: listener[1].address: 127.0.0.1:1883 is also")),
        ("[[listener]]\naddress = '127.0.0.1:0'\n[[listener]]\naddress = '127.0.0.1:0'\n".into(), None),
    ];
    for (text, expected) in cases {
        match (loaded(file(text)), expected) {
            (Ok(_), None) => {}
            (Err(errors), Some(part)) => assert!(errors.contains(part), "{text}: {part:?} in {errors:?}"),
            (outcome, _) => panic!("{text}: {outcome:?}"),
        }
    }
    let flags = Flags { listen: vec!["0.0.0.0:1883".parse().unwrap()], ..Flags::default() };
    let errors = loaded(Case { flags, ..Case::default() }).unwrap_err();
    assert!(errors.starts_with("--listen: listener[0].address: 0.0.0.0:1883 is reachable"), "{errors}");
    let flags = Flags { durability: Some(Durability::Fsync), ..Flags::default() };
    let served = loaded(Case { flags, ..Case::default() });
    assert_eq!(served.is_ok(), cfg!(feature = "rocksdb"), "{served:?}");
}

#[test]
fn each_layer_overrides_the_one_before() {
    let text = "[session]\nreceive_maximum = 10\nmax_queued_messages = 18446744073709551615\n[server]\nworker_threads = 2\n\
                data_dir = 'a'\n[[listener]]\naddress = '127.0.0.1:7'\nmax_connections = 4\n[log]\nlevel = 'warn'\n";
    assert!(loaded(file(text)).unwrap_err().contains("p.toml:3:"), "TOML's integers have 63 bits");
    let text = text.replace("18446744073709551615", "9223372036854775807");
    let env = [("PINNACE__SERVER__WORKER_THREADS", "3"), ("PINNACE__SERVER__DATA_DIR", "rel/b"), ("PINNACE_SEED", "1")];
    let flags = Flags {
        listen: vec!["127.0.0.1:8".parse().unwrap(), "[::1]:9".parse().unwrap()],
        data_dir: Some("c".into()),
        log_format: Some(LogFormat::Json),
        ..Flags::default()
    };

    let of_file = loaded(file(&text)).unwrap();
    assert_eq!(of_file.config.session.receive_maximum.get(), 10);
    assert_eq!(of_file.config.session.max_queued_messages, i64::MAX as u64);
    assert_eq!(of_file.config.listeners[0].max_connections, 4);
    assert!(of_file.data_dir.is_absolute() && of_file.data_dir.ends_with("a"), "relative to the file");

    let of_env = loaded(Case { file: Some(&text), env: &env, ..Case::default() }).unwrap();
    assert_eq!(of_env.config.server.worker_threads, 3);
    assert_eq!(of_env.data_dir, Path::new("rel/b"), "relative to the working directory");
    assert_eq!(of_env.origins.of("server.worker_threads"), &Origin::Variable("PINNACE__SERVER__WORKER_THREADS".into()));
    assert_eq!(of_env.config.listeners[0].max_connections, 4);

    let all = loaded(Case { file: Some(&text), env: &env, flags }).unwrap();
    let addresses: Vec<String> = all.config.listeners.iter().map(|listener| listener.address.to_string()).collect();
    assert_eq!(addresses, ["127.0.0.1:8", "[::1]:9"], "--listen replaces the file's listeners");
    assert_eq!(all.config.listeners[0].max_connections, 0);
    assert_eq!(all.data_dir, Path::new("c"));
    assert_eq!(all.config.log.format, LogFormat::Json);
    assert_eq!(all.config.log.level, "warn");
    let origins = ["listener[0].address", "server.data_dir", "log.level", "log.format", "session.max_subscriptions"];
    let origins = origins.map(|key| all.origins.of(key).to_string());
    let [listener, data_dir, level, format, subscriptions] = origins;
    assert_eq!((listener.as_str(), data_dir.as_str(), format.as_str()), ("--listen", "--data-dir", "--log-format"));
    assert!(level.ends_with("p.toml:11:9"), "{level}");
    assert_eq!(subscriptions, "default");
}

#[test]
fn strings_that_look_like_numbers_stay_as_they_are() {
    for text in ["0123", "1e5", "TRUE", "007", " 1 "] {
        let env = [("PINNACE__AUTH__PASSWORD_FILE", text)];
        let loaded = loaded(Case { env: &env, ..Case::default() }).unwrap();
        assert_eq!(loaded.config.auth.password_file.as_deref(), Some(Path::new(text)));
    }
}

#[test]
fn without_any_layer_the_defaults_are_in_force() {
    let flags = Flags { durability: Some(Config::default().storage.durability), ..Flags::default() };
    let (config, _) = layers::read(None, &[], flags).unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.listeners, [ListenerConfig::default()]);
}

#[test]
fn paths_of_a_file_start_at_its_directory() {
    let text = "[auth]\npassword_file = 'p'\nacl_file = '/etc/acl'\n[[listener]]\naddress = '127.0.0.1:1'\n[listener.tls]\n\
                certificate = './c'\nkey = '../k'\n";
    let config = loaded(file(text)).unwrap().config;
    let tls = config.listeners[0].tls.clone().unwrap();
    let dir = config.auth.password_file.as_deref().and_then(Path::parent).unwrap().to_owned();
    assert!(dir.is_absolute());
    assert_eq!(config.auth.acl_file.as_deref(), Some(Path::new("/etc/acl")));
    assert_eq!(tls.certificate, dir.join("c"));
    assert_eq!(tls.key, dir.join("../k"));
}

#[test]
fn the_data_directory_follows_the_xdg_rules() {
    type Env = &'static [(&'static str, &'static str)];
    let cases: &[(Env, Option<&str>)] = &[
        (&[("HOME", "/h")], Some("/h/.local/state/pinnace")),
        (&[("HOME", "/h"), ("XDG_STATE_HOME", "/s")], Some("/s/pinnace")),
        (&[("HOME", "/h"), ("XDG_STATE_HOME", "")], Some("/h/.local/state/pinnace")),
        (&[("HOME", "/h"), ("XDG_STATE_HOME", "relative")], Some("/h/.local/state/pinnace")),
        (&[("HOME", "h")], None),
        (&[], None),
    ];
    for (env, expected) in cases {
        let env: Vec<(OsString, OsString)> = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        assert_eq!(default_data_dir(&env).as_deref(), expected.map(Path::new), "{env:?}");
        assert_eq!(data_dir(&env).as_deref(), expected.map(Path::new), "{env:?}");
    }
    let env = [("PINNACE__SERVER__DATA_DIR".into(), "/d".into()), ("HOME".into(), "/h".into())];
    assert_eq!(data_dir(&env).as_deref(), Some(Path::new("/d")));
    let flags = Flags { durability: Some(Durability::Memory), ..Flags::default() };
    let errors = load(None, std::iter::empty(), flags).unwrap_err().to_string();
    assert!(errors.contains("server.data_dir: no home directory"), "{errors}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.toml");
    let check = |expected: &str| {
        let errors = load(Some(&path), std::iter::empty(), Flags::default()).unwrap_err().to_string();
        assert!(errors.contains(expected), "{expected:?} in {errors:?}");
    };
    check("p.toml: cannot be read: ");
    fs::write(&path, b"[log]\n# \xe9\n").unwrap();
    check("p.toml:2:3: the file must be UTF-8");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    check("p.toml: cannot be read: ");
}

#[test]
fn a_byte_order_mark_and_crlf_change_nothing() {
    let loaded = loaded(file("\u{feff}[session]\r\nreceive_maximum = 10\r\n")).unwrap();
    assert_eq!(loaded.config.session.receive_maximum.get(), 10);
    assert!(loaded.origins.of("session.receive_maximum").to_string().ends_with("p.toml:2:19"));
}
