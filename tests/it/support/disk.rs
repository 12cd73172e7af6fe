//! A disk that can lose its power, and fail: what `tests/preload/disk.c` wrote down of it, and what may be left of that.
//!
//! A file keeps what was synced. Of what was written since, a power cut leaves nothing, all, a torn beginning, or any of its pages. A sync that
//! failed has synced nothing, and no later one makes up for it. The same goes for the entries of a directory, but that a later sync of it does.
//! What is cut off a file is gone at once.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use super::{Random, Setup};

/// A disk below the broker's data directory.
pub struct Disk {
    /// Where the layer keeps its own.
    home: PathBuf,
    /// The data directory.
    root: PathBuf,
    /// What the disk held when the log began.
    base: Model,
    /// How often it was made to fail.
    faults: u64,
}

/// What a power cut took, and what it left of what it might have taken.
#[derive(Debug, Default)]
pub struct Cut {
    /// Bytes of files that were written and not synced.
    pub unsynced: u64,
    /// Changes of directories that were not synced.
    pub changes: usize,
}

impl Disk {
    /// Puts such a disk below a broker that has no data yet.
    pub fn below(setup: Setup) -> (Self, Setup) {
        let (home, root) = (setup.dir().join("disk"), setup.data_dir());
        fs::create_dir_all(home.join("kept")).unwrap();
        fs::create_dir(&root).unwrap();
        let disk = Self { base: Model::of(&root, &home.join("kept")), home, root, faults: 0 };
        let setup = setup
            .env("LD_PRELOAD", layer().to_str().unwrap())
            .env("PINNACE_TEST_DISK", disk.home.to_str().unwrap())
            .env("PINNACE_TEST_DISK_ROOT", disk.root.to_str().unwrap());
        (disk, setup)
    }

    /// After the broker's process was killed: takes the power away from the disk. What is left of it is what the next start finds.
    pub fn cut(&mut self, random: &mut Random) -> Cut {
        let mut model = self.base.clone();
        model.journal = random.below(2) == 0;
        self.events().iter().for_each(|event| model.apply(event));
        let cut = Cut {
            unsynced: model.files.values().map(|file| file.written - file.settled).sum(),
            changes: model.pending.len(),
        };
        model.settle_some(random);
        let kept = self.home.join("kept");
        let left: Vec<_> = model.reachable().map(|(path, inode)| (path, model.left(inode, &kept, random))).collect();
        fs::remove_dir_all(&self.root).unwrap();
        fs::create_dir(&self.root).unwrap();
        for (path, content) in left {
            let path = self.root.join(path);
            match content {
                None => fs::create_dir(path).unwrap(),
                Some(content) => fs::write(path, content).unwrap(),
            }
        }
        fs::remove_dir_all(&kept).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::remove_file(self.home.join("log")).unwrap();
        self.base = Model::of(&self.root, &kept);
        cut
    }

    /// Has calls fail from now on: lines as `tests/preload/disk.c` reads them.
    pub fn fail(&mut self, faults: &str) {
        self.faults += 1;
        let next = self.home.join("fault.next");
        // A line that never applies makes each text another one: it counts anew.
        fs::write(&next, format!("{faults}nothing 0 0 0 {}\n", self.faults)).unwrap();
        fs::rename(next, self.home.join("fault")).unwrap();
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        fs::remove_file(self.home.join("fault")).unwrap();
    }

    /// The log, line by line.
    pub fn events(&self) -> Vec<String> {
        let log = fs::read_to_string(self.home.join("log")).unwrap_or_default();
        // A kill may have cut the last line.
        log.split_inclusive('\n').filter_map(|line| Some(line.strip_suffix('\n')?.to_owned())).collect()
    }
}

/// What was done to the disk, and how much of it must be there after a power cut.
#[derive(Clone, Default)]
struct Model {
    files: HashMap<u64, File>,
    directories: HashMap<u64, String>,
    /// Entries of directories by path, as programs see them, and as the disk has them for sure.
    seen: BTreeMap<String, u64>,
    settled: BTreeMap<String, u64>,
    /// Numbered changes between the two.
    pending: Vec<(usize, Change)>,
    changes: usize,
    /// What each sync that is under way will have synced.
    syncing: HashMap<(u64, u64), u64>,
    /// The sync of a file syncs all directories, as it happens to do where they are in one journal.
    journal: bool,
}

/// A file that is only ever appended to.
#[derive(Clone, Default)]
struct File {
    /// So much of it was synced, but for the doubtful parts.
    settled: u64,
    written: u64,
    /// Their sync failed.
    doubtful: Vec<Range<u64>>,
}

#[derive(Clone)]
struct Change {
    inode: u64,
    from: Option<String>,
    to: Option<String>,
}

impl Change {
    fn path(&self) -> &str {
        self.to.as_ref().or(self.from.as_ref()).unwrap()
    }

    fn apply(self, entries: &mut BTreeMap<String, u64>) {
        if let Some(from) = self.from.filter(|from| entries.get(from) == Some(&self.inode)) {
            entries.remove(&from);
        }
        if let Some(to) = self.to {
            entries.insert(to, self.inode);
        }
    }
}

impl Model {
    /// What is there, all of it synced; each file gets its link in `kept`.
    fn of(root: &Path, kept: &Path) -> Self {
        let mut model = Self::default();
        model.directories.insert(fs::metadata(root).unwrap().ino(), String::new());
        let mut unread = vec![root.to_owned()];
        while let Some(directory) = unread.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let (metadata, name) = (fs::metadata(&path).unwrap(), path.strip_prefix(root).unwrap());
                let name = name.to_str().unwrap().to_owned();
                model.seen.insert(name.clone(), metadata.ino());
                if metadata.is_dir() {
                    model.directories.insert(metadata.ino(), name);
                    unread.push(path);
                } else {
                    fs::hard_link(&path, kept.join(metadata.ino().to_string())).unwrap();
                    let len = metadata.len();
                    model.files.insert(metadata.ino(), File { settled: len, written: len, doubtful: Vec::new() });
                }
            }
        }
        model.settled = model.seen.clone();
        model
    }

    fn apply(&mut self, event: &str) {
        let words: Vec<&str> = event.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "create" => {
                self.files.entry(number(1)).or_default();
                self.change(number(1), None, Some(words[2]));
            }
            "mkdir" => {
                self.directories.insert(number(1), words[2].into());
                self.change(number(1), None, Some(words[2]));
            }
            "rename" => {
                let inode = self.seen[words[1]];
                assert!(!self.directories.contains_key(&inode), "not modelled: {event}");
                self.change(inode, Some(words[1]), Some(words[2]));
            }
            "unlink" => {
                // A socket was not made by open.
                if let Some(inode) = self.seen.get(words[1]) {
                    self.change(*inode, Some(words[1]), None);
                }
            }
            "write" => {
                let file = self.files.get_mut(&number(1)).unwrap();
                assert_eq!(file.written, number(2), "not modelled: a file that is not appended to: {event}");
                file.written = number(3);
            }
            "truncate" => {
                let (file, len) = (self.files.get_mut(&number(1)).unwrap(), number(2));
                assert!(len <= file.written, "not modelled: {event}");
                (file.settled, file.written) = (file.settled.min(len), len);
            }
            "syncing" => {
                let covers = self.files.get(&number(1)).map_or(self.changes as u64, |file| file.written);
                self.syncing.insert((number(1), number(2)), covers);
            }
            "synced" | "unsynced" => {
                let covers = self.syncing.remove(&(number(1), number(2))).unwrap();
                self.synced(number(1), covers, words[0] == "synced");
            }
            "fault" => {}
            _ => panic!("not modelled: {event}"),
        }
    }

    fn change(&mut self, inode: u64, from: Option<&str>, to: Option<&str>) {
        let change = Change { inode, from: from.map(Into::into), to: to.map(Into::into) };
        change.clone().apply(&mut self.seen);
        self.pending.push((self.changes, change));
        self.changes += 1;
    }

    /// A sync of what there was when it began has ended.
    fn synced(&mut self, inode: u64, covers: u64, succeeded: bool) {
        let (until, directory) = match self.files.get_mut(&inode) {
            Some(file) => {
                if !succeeded {
                    file.doubtful.push(file.settled..covers);
                }
                file.settled = file.settled.max(covers);
                (self.changes, None)
            }
            None => (covers as usize, Some(&self.directories[&inode])),
        };
        if !succeeded || (directory.is_none() && !self.journal) {
            return;
        }
        let is_in = |path: &str| {
            let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            directory.is_none_or(|directory| directory == parent)
        };
        let settled = self.pending.extract_if(.., |(number, change)| *number < until && is_in(change.path()));
        settled.for_each(|(_, change)| change.apply(&mut self.settled));
    }

    /// Of the changes of directories that were not synced, some happen to be on the disk: the first ones, or any.
    fn settle_some(&mut self, random: &mut Random) {
        let pending = std::mem::take(&mut self.pending);
        let first = random.below(pending.len() as u64 + 1) as usize;
        let in_order = random.below(2) == 0;
        for (at, (_, change)) in pending.into_iter().enumerate() {
            if if in_order { at < first } else { random.below(2) == 0 } {
                change.apply(&mut self.settled);
            }
        }
    }

    /// What can be found on the disk from its root, directories first.
    fn reachable(&self) -> impl Iterator<Item = (&String, u64)> {
        self.settled.iter().map(|(path, inode)| (path, *inode)).filter(|(path, _)| {
            let mut parents = path.match_indices('/').map(|(at, _)| &path[..at]);
            parents.all(|parent| self.settled.contains_key(parent))
        })
    }

    /// What is left of a file; none for a directory.
    fn left(&self, inode: u64, kept: &Path, random: &mut Random) -> Option<Vec<u8>> {
        let file = self.files.get(&inode)?;
        // One that was just being made is empty.
        let mut content = fs::read(kept.join(inode.to_string())).unwrap_or_default();
        let mut missing = file.doubtful.clone();
        let written = file.settled + random.below(file.written - file.settled + 1);
        content.truncate(match random.below(4) {
            0 => file.settled,
            1 => file.written,
            2 => (written - written % [1, SECTOR, PAGE][random.below(3) as usize]).max(file.settled),
            _ => {
                missing.push(file.settled..written);
                written
            }
        } as usize);
        for range in missing {
            for page in range.start / PAGE..range.end.div_ceil(PAGE) {
                if random.below(2) == 0 {
                    let (from, to) = (range.start.max(page * PAGE), range.end.min((page + 1) * PAGE));
                    let len = content.len() as u64;
                    content[from.min(len) as usize..to.min(len) as usize].fill(0);
                }
            }
        }
        Some(content)
    }
}

/// The library that is loaded before the C library, compiled once.
fn layer() -> &'static Path {
    static LAYER: OnceLock<PathBuf> = OnceLock::new();
    LAYER.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preload/disk.c");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("disk-{}.so", std::process::id()));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let mut command = Command::new(compiler);
        command.args(["-O1", "-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl");
        let built = command.output().expect("a C compiler, as the store's engine needs one too");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        library
    })
}

const SECTOR: u64 = 512;
const PAGE: u64 = 4096;
