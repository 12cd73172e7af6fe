//! Directories of backups: damaged ones, those of others, several commands at once, who may read them.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{Read, Write},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt, net::UnixListener},
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, Signal, kill_process},
};

use crate::{
    support::{
        Broker, PATIENCE, Setup,
        broker::{pinnace, run, wait},
        eventually,
    },
    tools::{done, files, json, on, refused},
};

/// Two backups of a store at rest, and where they are.
fn two_backups() -> (Broker, PathBuf) {
    let mut broker = Broker::start();
    let backups = broker.dir().join("backups");
    for round in ["one", "two"] {
        broker.v5("client").publish_retained(round, vec![7; 5000], 1);
        done(&on(&broker.data_dir(), &[&"backup", &backups]));
    }
    broker.terminate();
    (broker, backups)
}

fn of(backups: &Path, args: &[&str]) -> Output {
    run([OsStr::new("backup"), backups.as_os_str()].into_iter().chain(args.iter().map(OsStr::new)))
}

/// RocksDB keeps silent about one that lacks a file, and restores the one before.
#[test]
fn a_backup_that_is_not_whole_is_told() {
    let (broker, backups) = two_backups();
    // The last file of a table is in the newest one alone.
    let (table, (bytes, _)) = files(&backups.join("shared_checksum")).pop_last().unwrap();
    fs::write(&table, &bytes[..10]).unwrap();
    refused(&of(&backups, &["--verify"]), "checksum");
    fs::remove_file(table).unwrap();
    let listed = json(&of(&backups, &["--list", "--json"]));
    let damaged = |at: usize| (listed["backups"][at]["id"].as_u64(), listed["backups"][at]["is_damaged"].as_bool());
    assert_eq!((damaged(0), damaged(1)), ((Some(1), Some(false)), (Some(2), Some(true))));
    let problem = "a file of backup 2 is missing; name another one by --backup; there are: 1";
    refused(&of(&backups, &["--verify"]), problem);
    refused(&of(&backups, &["--verify", "--backup", "2"]), problem);
    let elsewhere = broker.dir().join("elsewhere");
    refused(&on(&elsewhere, &[&"restore", &backups]), problem);
    assert!(!elsewhere.join("store").exists());
    done(&of(&backups, &["--verify", "--backup", "1"]));
    done(&on(&elsewhere, &[&"restore", &backups, &"--backup", &"1"]));
    // The next one is whole.
    let made = json(&on(&broker.data_dir(), &[&"backup", &backups, &"--json"]));
    assert_eq!(made["id"], 3);
    done(&of(&backups, &["--verify"]));
}

/// They hold every payload.
#[test]
fn nobody_else_may_read_them() {
    let mut broker = Broker::start();
    let backups = broker.dir().join("backups");
    fs::create_dir(&backups).unwrap();
    fs::set_permissions(&backups, fs::Permissions::from_mode(0o755)).unwrap();
    broker.v5("client").publish_retained("kept", "value", 1);
    done(&on(&broker.data_dir(), &[&"backup", &backups]));
    broker.terminate();
    done(&on(&broker.data_dir(), &[&"backup", &backups]));
    let restored = broker.dir().join("restored");
    done(&on(&restored, &[&"restore", &backups]));
    for dir in [&backups, &restored, &broker.data_dir()] {
        for path in files(dir).into_keys() {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o077, 0, "{}", path.display());
        }
    }
}

/// A store has a directory of its own, also after it was restored.
#[test]
fn a_directory_of_backups_belongs_to_one_store() {
    let (broker, backups) = two_backups();
    let other = Broker::start();
    refused(&on(&other.data_dir(), &[&"backup", &backups]), "backups of another store");
    let restored = broker.dir().join("restored");
    done(&on(&restored, &[&"restore", &backups]));
    assert_eq!(json(&on(&restored, &[&"backup", &backups, &"--json"]))["id"], 3);
    // A directory that merely has one of that name.
    let foreign = broker.dir().join("foreign");
    fs::create_dir_all(foreign.join("meta")).unwrap();
    refused(&on(&restored, &[&"backup", &foreign]), "holds no backups");
    refused(&of(&foreign, &["--list"]), "there are no backups in it");
}

/// What one reads, no other removes.
#[test]
fn commands_on_the_same_backups_wait_for_each_other() {
    let (broker, backups) = two_backups();
    let mark = File::open(backups.join("pinnace-store")).unwrap();
    flock(&mark, FlockOperation::NonBlockingLockShared).unwrap();
    done(&of(&backups, &["--list"]));
    let busy = "another pinnace works on its backups";
    refused(&on(&broker.data_dir(), &[&"backup", &backups, &"--keep", &"1"]), busy);
    flock(&mark, FlockOperation::NonBlockingLockExclusive).unwrap();
    for args in [&["--list"][..], &["--verify"]] {
        refused(&of(&backups, args), busy);
    }
    refused(&on(&broker.dir().join("elsewhere"), &[&"restore", &backups]), busy);
    drop(mark);
    done(&on(&broker.data_dir(), &[&"backup", &backups, &"--keep", &"1"]));
    assert_eq!(json(&of(&backups, &["--list", "--json"]))["backups"].as_array().unwrap().len(), 1);
}

/// A broker that sees another directory under the same name, as by systemd's PrivateTmp.
#[test]
fn a_backup_that_is_not_seen_is_no_success() {
    let setup = Setup::new();
    let socket = setup.dir().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let broker = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{\"id\":1}").unwrap();
    });
    let dir = setup.dir().join("backups");
    let args: [&OsStr; 4] = ["backup".as_ref(), dir.as_os_str(), "--socket".as_ref(), socket.as_os_str()];
    refused(&run(args), "a file system of its own");
    broker.join().unwrap();
}

#[test]
fn what_is_in_the_way_of_a_backup_is_told() {
    let broker = Broker::start();
    let data_dir = broker.data_dir();
    let unnamed = broker.dir().join(OsStr::from_bytes(b"back\xffups"));
    refused(&on(&data_dir, &[&"backup", &unnamed]), "not UTF-8");
    let into = data_dir.file_name().unwrap().to_str().unwrap();
    let winding = broker.dir().join(format!("missing/../{into}/backups"));
    refused(&on(&data_dir, &[&"backup", &winding]), "before .. is not there");
    assert!(!data_dir.join("backups").exists());
    // No broker, and yet in use.
    let held = broker.dir().join("held");
    fs::create_dir_all(held.join("store")).unwrap();
    let lock = File::create(held.join("lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let backups = broker.dir().join("backups");
    for args in
        [&[&"backup" as &dyn AsRef<OsStr>, &backups][..], &[&"store", &"check"], &[&"store", &"import", &"/dev/null"]]
    {
        refused(&on(&held, args), "another pinnace command works on it");
    }
    drop(lock);
    // A path that leads through a file says so, and not that nothing is there.
    let file = broker.file("file", "x");
    refused(&on(&file, &[&"store", &"check"]), "Not a directory");
}

/// What root writes, the broker's user could not use.
#[test]
fn what_belongs_to_another_user_is_not_written() {
    let (broker, backups) = two_backups();
    if std::os::unix::fs::chown(broker.data_dir(), Some(12345), None).is_err() {
        // Only root is in danger.
        return;
    }
    let before = files(&broker.data_dir());
    let refused = |args: &[&dyn AsRef<OsStr>]| {
        let output = on(&broker.data_dir(), args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("belongs to user 12345"), "{said}");
    };
    refused(&[&"backup", &backups]);
    fs::remove_dir_all(broker.data_dir().join("store")).unwrap();
    refused(&[&"restore", &backups]);
    refused(&[&"store", &"import", &"/dev/null"]);
    assert!(before.len() > 2 && files(&broker.data_dir()).keys().all(|path| path.ends_with("lock")));
}

/// Ctrl-C takes the copy with it.
#[test]
fn an_interrupted_verification_or_restoration_leaves_nothing() {
    let (broker, backups) = two_backups();
    let left = |dir: &Path, name: &str| -> Vec<PathBuf> {
        let found = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
        found.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(name)).collect()
    };
    // From then on a signal does what it should.
    let has_begun = |dir: &Path, name: &str| {
        let begun = left(dir, name).iter().any(|path| fs::read_dir(path).is_ok_and(|mut files| files.next().is_some()));
        begun.then_some(())
    };
    for _ in 0..3 {
        let mut command = pinnace();
        command
            .arg("backup")
            .arg(&backups)
            .arg("--verify")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        eventually("a copy", || has_begun(&backups, "verify-"));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let code = wait(&mut child, PATIENCE).expect("it ends").code();
        assert!(code == Some(130) || code == Some(0), "{code:?}");
        assert!(left(&backups, "verify-").is_empty());
    }
    let data_dir = broker.dir().join("elsewhere");
    let mut command = pinnace();
    command.arg("restore").arg(&backups).arg("--data-dir").arg(&data_dir).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    eventually("a store in the making", || has_begun(&data_dir, "store"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let code = wait(&mut child, PATIENCE).expect("it ends").code();
    // It comes in time, or all is done.
    assert_eq!(code == Some(0), data_dir.join("store").exists(), "{code:?}");
    assert!(left(&data_dir, "store.new").is_empty());
    if code == Some(0) {
        done(&on(&data_dir, &[&"store", &"check"]));
    }
}
