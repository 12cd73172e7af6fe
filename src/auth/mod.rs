//! Who a client is and what it may do: certificate names, password files, SCRAM, ACL files, and the rules in force.
//!
//! Knows topics (`mqtt`) and the three kinds of files; must not know of connections, sessions, storage, or the order in
//! which a broker asks.

pub mod acl;
mod acl_file;
pub mod certificate;
pub mod file;
pub mod identity;
pub mod password;
mod password_file;
mod password_hash;
mod password_verifier;
pub mod scram;

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use crate::mqtt::{TopicFilter, TopicName};

pub use acl::{Access, Acl, Judge, Verdict, Who};
pub use certificate::CertificateError;
pub use file::FileError;
pub use identity::Identity;
pub use password::{PasswordFile, Passwords};

/// The `[auth]` section.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// User names with password hashes and SCRAM verifiers, as `pinnace passwd` and `mosquitto_passwd` write them. Unset: no
    /// name and password is accepted.
    pub password_file: Option<PathBuf>,
    /// Who may publish and receive which topics, in mosquitto's syntax. Unset: everything is allowed to everyone who is let
    /// in.
    pub acl_file: Option<PathBuf>,
    /// Whether a client id that contains `/` is put literally in the place of `%c`, as mosquitto does. Clients choose their
    /// ids, so that such an id reaches into another one's subtree.
    pub client_id_with_slash_fills_pattern: bool,
    /// Whether a retained message is withheld from new subscriptions while the ACL does not let who published it publish to its topic, as
    /// mosquitto does. It stays stored.
    pub check_retain_source: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            password_file: None,
            acl_file: None,
            client_id_with_slash_fills_pattern: false,
            check_retain_source: true,
        }
    }
}

/// The rules in force. They are replaced as a whole, and read without a lock.
#[derive(Debug)]
pub struct Auth {
    config: Config,
    rules: ArcSwap<Rules>,
    generation: AtomicU64,
}

impl Auth {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// The first fault of a file. Nobody is let in by a file that is only partly right.
    pub fn load(config: &Config) -> Result<Self, FileError> {
        let rules = Rules::load(config).map_err(|(first, _)| first)?;
        Ok(Self { config: config.clone(), rules: ArcSwap::from_pointee(rules), generation: AtomicU64::new(1) })
    }

    /// Reads the files again. Nothing changes until [`Auth::install`].
    ///
    /// # Errors
    /// The fault of each file that is not right.
    pub fn read(&self) -> Result<Rules, Vec<FileError>> {
        Rules::load(&self.config).map_err(|(first, others)| iter::once(first).chain(others).collect())
    }

    /// The files of `rules`, which were read and are not in force yet, that say nothing while they did before, and what that means. An empty
    /// file is legal, but seldom meant.
    pub fn emptied(&self, rules: &Rules) -> impl Iterator<Item = (&Path, &'static str)> {
        let before: Vec<_> = self.empty(&self.rules()).collect();
        self.empty(rules).filter(move |file| !before.contains(file))
    }

    /// The files of `rules` that say nothing, and what that means.
    pub fn empty(&self, rules: &Rules) -> impl Iterator<Item = (&Path, &'static str)> {
        let without_rules = rules.acl().is_some_and(Acl::is_empty);
        let without_users = rules.passwords().is_some_and(Passwords::is_empty);
        let acl = self.config.acl_file.as_deref().filter(|_| without_rules);
        let users = self.config.password_file.as_deref().filter(|_| without_users);
        let acl = acl.map(|path| (path, "no rule is in it: nobody may publish or receive anything"));
        acl.into_iter().chain(users.map(|path| (path, "no user is in it: nobody gets in by a user name")))
    }

    /// Puts `rules` in force, all at once.
    pub fn install(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
        // After the rules: who sees the new number sees the new rules.
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The ACL file, where one is configured.
    #[must_use]
    pub fn acl_file(&self) -> Option<&Path> {
        self.config.acl_file.as_deref()
    }

    /// Whether retained messages are judged by the rights of who published them: [`Config::check_retain_source`].
    #[must_use]
    pub fn checks_retain_source(&self) -> bool {
        self.config.check_retain_source
    }

    /// The rules in force now.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// Grows each time that the rules are replaced. Who keeps verdicts asks for this number before it asks for the rules,
    /// and drops what it kept when the number has changed.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// What one reading of the files gave.
#[derive(Debug, Default)]
pub struct Rules {
    acl: Option<Acl>,
    passwords: Option<Passwords>,
}

impl Rules {
    /// The ACL file's rules, where one is configured.
    #[must_use]
    pub fn acl(&self) -> Option<&Acl> {
        self.acl.as_ref()
    }

    /// The password file's users, where one is configured.
    #[must_use]
    pub fn passwords(&self) -> Option<&Passwords> {
        self.passwords.as_ref()
    }

    /// Whether `who` may publish or receive `topic`. Without an ACL file everything is allowed but what [`Acl::verdict`] denies
    /// to all.
    #[must_use]
    pub fn verdict(&self, who: Who<'_>, access: Access, topic: &TopicName) -> Verdict {
        match &self.acl {
            Some(acl) => acl.verdict(who, access, topic),
            None => Verdict { allowed: !acl::is_reserved(access, topic), line: None },
        }
    }

    /// What [`Rules::verdict`] goes by for `who`, ready to be asked for many topics. None without an ACL file.
    #[must_use]
    pub fn judge(&self, who: Who<'_>) -> Option<Judge<'_>> {
        self.acl.as_ref().map(|acl| acl.judge(who))
    }

    /// Whether `who` may subscribe to `filter`; see [`Acl::may_subscribe`]. Without an ACL file it may.
    #[must_use]
    pub fn may_subscribe(&self, who: Who<'_>, filter: &TopicFilter) -> Verdict {
        match &self.acl {
            Some(acl) => acl.may_subscribe(who, filter),
            None => Verdict { allowed: true, line: None },
        }
    }

    /// Whether `who` may receive all that `filter` matches; see [`Acl::may_receive_all`]. Without an ACL file it may.
    #[must_use]
    pub fn may_receive_all(&self, who: Who<'_>, filter: &TopicFilter) -> bool {
        self.acl.as_ref().is_none_or(|acl| acl.may_receive_all(who, filter))
    }

    /// Reads all files, so that each one's fault is told.
    fn load(config: &Config) -> Result<Self, (FileError, Vec<FileError>)> {
        let options = acl::Options { client_id_with_slash_fills_pattern: config.client_id_with_slash_fills_pattern };
        let acl = config.acl_file.as_deref().map(|path| Acl::load(path, options)).transpose();
        let passwords = config.password_file.as_deref().map(Passwords::load).transpose();
        match (acl, passwords) {
            (Ok(acl), Ok(passwords)) => Ok(Self { acl, passwords }),
            (Err(first), passwords) => Err((first, passwords.err().into_iter().collect())),
            (Ok(_), Err(first)) => Err((first, Vec::new())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn topic(text: &str) -> TopicName {
        TopicName::parse(text).unwrap()
    }

    fn reload(auth: &Auth) -> Result<(), Vec<FileError>> {
        auth.install(auth.read()?);
        Ok(())
    }

    const DEVICE: Who<'_> = Who { username: Some("device"), client_id: "c" };

    #[test]
    fn without_files_all_but_sys_is_allowed() {
        let auth = Auth::load(&Config::default()).unwrap();
        let rules = auth.rules();
        assert!(rules.acl().is_none() && rules.passwords().is_none());
        for (access, name, allowed) in [
            (Access::Publish, "a", true),
            (Access::Receive, "$SYS/broker/uptime", true),
            (Access::Publish, "$SYS/broker/uptime", false),
        ] {
            assert_eq!(rules.verdict(DEVICE, access, &topic(name)), Verdict { allowed, line: None });
        }
        assert!(rules.may_subscribe(DEVICE, &TopicFilter::parse("#").unwrap()).allowed);
    }

    /// Cases D112, D114: a reload is all or nothing.
    #[test]
    fn a_bad_file_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (acl_file, password_file) = (directory.path().join("acl"), directory.path().join("users"));
        let config = Config {
            acl_file: Some(acl_file.clone()),
            password_file: Some(password_file.clone()),
            ..Config::default()
        };
        assert!(Auth::load(&config).unwrap_err().to_string().contains("acl:1:1: No such file"));
        fs::write(&acl_file, "user device\ntopic a").unwrap();
        assert!(Auth::load(&config).unwrap_err().to_string().contains("users:1:1: No such file"));
        let user = format!("device:$6$AAAA${}==", "A".repeat(86));
        fs::write(&password_file, &user).unwrap();

        let auth = Auth::load(&config).unwrap();
        let in_force = |auth: &Auth| {
            let rules = auth.rules();
            let allowed = ["a", "b"].map(|name| rules.verdict(DEVICE, Access::Receive, &topic(name)).allowed);
            (auth.generation(), allowed, rules.passwords().map(Passwords::len))
        };
        let first = (1, [true, false], Some(1));
        assert_eq!(in_force(&auth), first);

        fs::write(&acl_file, "user device\ntopic b").unwrap();
        fs::write(&password_file, "device").unwrap();
        let faults = reload(&auth).unwrap_err();
        assert!(
            matches!(faults.as_slice(), [fault] if fault.path == password_file && (fault.line, fault.column) == (1, 1))
        );
        assert_eq!(in_force(&auth), first);

        fs::write(&acl_file, "\ntopics").unwrap();
        let faults = reload(&auth).unwrap_err();
        assert!(
            matches!(faults.as_slice(), [acl, users] if acl.line == 2 && users.path == password_file),
            "{faults:?}"
        );
        fs::remove_file(&password_file).unwrap();
        fs::create_dir(&password_file).unwrap();
        assert_eq!(reload(&auth).unwrap_err().len(), 2);
        assert_eq!(in_force(&auth), first);

        fs::remove_dir(&password_file).unwrap();
        fs::write(&password_file, "").unwrap();
        fs::write(&acl_file, "user device\ntopic b").unwrap();
        let emptied = |auth: &Auth| {
            let read = auth.read().unwrap();
            auth.emptied(&read).map(|(path, _)| path.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(emptied(&auth), [password_file.as_path()]);
        reload(&auth).unwrap();
        assert_eq!(in_force(&auth), (2, [false, true], Some(0)));
        fs::write(&acl_file, "# nothing\nuser device\n").unwrap();
        assert_eq!(emptied(&auth), [acl_file.as_path()]);
        reload(&auth).unwrap();
        assert_eq!(in_force(&auth), (3, [false, false], Some(0)), "an empty file is taken");
        assert!(emptied(&auth).is_empty(), "it was empty before");
    }
}
