//! Every record read by its decoder, and what records say of each other.
//!
//! Changes nothing, and must not know what is to be done about what it finds.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    ops::ControlFlow,
};

use super::super::{
    BodyId, Engine, Error, LogId, LogState, OpenEntry, Seq, Table, UNSTORED, Unreadable,
    error::Hex,
    garbage::Garbage,
    in_full,
    keys::{self, Key, OwnerKey},
    record::{self, EntryMessage},
    recover::{self, EVERYTHING_END},
};
use crate::mqtt::Filter;

/// Something that is not as the store writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub table: Table,
    /// The key of the record; where records cannot be read, the last one before them, or none.
    pub key: Vec<u8>,
    /// What stands there, in words: whose session, which topic.
    pub of: String,
    /// What is wrong. The engine names the file.
    pub problem: String,
    /// Whether something is lost or wrong. What is left over, and removed by the next start, is no fault.
    pub is_fault: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}, ", self.table)?;
        if !self.key.is_empty() {
            write!(f, "key {}, ", Hex(&self.key))?;
        }
        write!(f, "{}: {}", self.of, self.problem)
    }
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Records that could be read.
    pub records: u64,
    /// Findings that are faults.
    pub faults: u64,
    /// Findings that are not.
    pub leftovers: u64,
}

/// See [`super::Snapshot::check`].
pub(super) fn check(
    engine: &dyn Engine,
    tick: &mut dyn FnMut(u64),
    found: &mut dyn FnMut(Finding),
) -> Result<Checked, Error> {
    let mut check = Check {
        engine,
        tick,
        found,
        checked: Checked::default(),
        next_id: recover::next_id(engine).unwrap_or(u64::MAX),
        owners: BTreeMap::new(),
        clients: HashSet::new(),
        garbage: HashMap::new(),
        bodies: BTreeMap::new(),
    };
    check.walk(Table::Meta, Check::meta)?;
    check.walk(Table::Sessions, Check::session_record)?;
    check.owners();
    check.walk(Table::Bodies, Check::body_record)?;
    check.walk(Table::Logs, Check::entry)?;
    check.logs();
    check.bodies();
    check.walk(Table::Retained, Check::retained)?;
    Ok(check.checked)
}

struct Check<'a> {
    engine: &'a dyn Engine,
    tick: &'a mut dyn FnMut(u64),
    found: &'a mut dyn FnMut(Finding),
    checked: Checked,
    next_id: u64,
    owners: BTreeMap<LogId, Owner>,
    clients: HashSet<String>,
    garbage: HashMap<LogId, Garbage>,
    bodies: BTreeMap<BodyId, Body>,
}

/// The session or group of a log, as far as entries and others refer to it.
#[derive(Default)]
struct Owner {
    /// Its name; none where records are left of one that is gone.
    name: Option<String>,
    state: LogState,
    /// What is in flight, ascending; later: what of it was not found in the log.
    open: Vec<OpenEntry>,
    last: Seq,
    last_bytes: u64,
}

#[derive(Default)]
struct Body {
    is_stored: bool,
    count: Option<u32>,
    references: u32,
}

/// What reads one record: its key and value.
type Each<C> = fn(&mut C, &[u8], &[u8]) -> Result<(), Unreadable>;

impl Check<'_> {
    /// Gives `each` every record of the table. Where some cannot be read, it is told, and goes on at the next file.
    fn walk(&mut self, table: Table, each: Each<Self>) -> Result<(), Error> {
        let mut from = Key::new();
        // The last key before what cannot be read, and why it cannot.
        let mut hole: Option<(Key, Vec<String>)> = None;
        loop {
            let (page, failure) = self.page(table, &from);
            let is_over = page.is_empty() && (failure.is_none() || *from == *EVERYTHING_END);
            if let Some((before, problems)) = hole.take_if(|_| is_over || !page.is_empty()) {
                let end = page.first().map_or_else(|| "its end".to_owned(), |(key, _)| format!("key {}", Hex(key)));
                for problem in problems {
                    self.fault(table, &before, format!("what follows, up to {end}, cannot be read: {problem}"));
                }
            }
            if is_over {
                return Ok(());
            }
            for (key, value) in &page {
                if let Err(problem) = each(self, key, value) {
                    self.fault(table, key, problem.to_string());
                }
            }
            let reached = page.into_iter().next_back().map_or(from, |(key, _)| key);
            let Some(failure) = failure else {
                from = after(reached);
                continue;
            };
            let (_, problems) = hole.get_or_insert_with(|| (reached.clone(), Vec::new()));
            // One damaged block is met again by each file that begins within its range.
            let problem = in_full(&failure);
            if !problems.contains(&problem) {
                problems.push(problem);
            }
            let fences = self.engine.fences(table)?;
            let next = fences.into_iter().find(|fence| **fence > *reached);
            // Behind the last one there is nothing.
            from = Key::from_slice(next.as_deref().unwrap_or(EVERYTHING_END));
        }
    }

    /// The next records, and what ended them early.
    fn page(&mut self, table: Table, from: &[u8]) -> (Vec<(Key, Vec<u8>)>, Option<Error>) {
        let mut page = Vec::new();
        let mut bytes = 0;
        let scanned = self.engine.scan(table, from, EVERYTHING_END, &mut |key, value| {
            bytes += value.len();
            page.push((Key::from_slice(key), value.to_vec()));
            let is_full = page.len() == PAGE_RECORDS || bytes >= PAGE_BYTES;
            if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.checked.records += page.len() as u64;
        (self.tick)(page.len() as u64);
        (page, scanned.err())
    }

    fn meta(&mut self, key: &[u8], value: &[u8]) -> Result<(), Unreadable> {
        match key {
            keys::FORMAT => record::get_format(value).map(drop),
            keys::NEXT_ID => record::get_id(value).map(drop),
            keys::TIME => record::get_time(value).map(drop),
            _ => {
                let log = keys::parse_garbage(key).ok_or(Unreadable::Key)?;
                self.garbage.insert(log, record::get_garbage(log, value)?);
                Ok(())
            }
        }
    }

    fn session_record(&mut self, key: &[u8], value: &[u8]) -> Result<(), Unreadable> {
        if let Some(session) = keys::parse_will(key) {
            // That of a session that the store never heard of has an id of its process.
            if session < UNSTORED {
                self.given(Table::Sessions, key, session);
            }
            return record::get_will(session, value).map(drop);
        }
        let (id, kind) = keys::parse_owner(key).ok_or(Unreadable::Key)?;
        let owner = self.owners.entry(id).or_default();
        match kind {
            OwnerKey::Session => {
                // Its name is known from here on, also where the rest of it cannot be read.
                let name = owner.name.insert(format!("session {id}"));
                let session = record::get_session(id, value)?;
                *name = format!("client {:?}", session.client_id);
                if let Some(again) = self.clients.replace(session.client_id) {
                    self.fault(Table::Sessions, key, format!("client {again:?} has another session"));
                }
                self.given(Table::Sessions, key, id);
            }
            OwnerKey::Group => {
                let name = owner.name.insert(format!("group {id}"));
                let group = record::get_group(id, value)?;
                *name = format!("$share/{}/{}", group.share, group.filter);
                let name = name.clone();
                self.filter(key, &name);
                self.given(Table::Sessions, key, id);
            }
            OwnerKey::LogState => owner.state = record::get_log_state(value)?,
            OwnerKey::Subscription(filter) => {
                record::get_subscription(filter, value)?;
                self.filter(key, filter);
            }
            OwnerKey::Received(_) => record::get_nothing(value)?,
            OwnerKey::Open(seq) => owner.open.push(record::get_open(seq, value)?),
        }
        Ok(())
    }

    /// What the sessions and groups say of each other.
    fn owners(&mut self) {
        let mut gone = Vec::new();
        let mut holders = Vec::new();
        for (&id, owner) in &self.owners {
            if owner.name.is_none() {
                gone.push(id);
            }
            let is_known = |holder: LogId| self.owners.get(&holder).is_some_and(|owner| owner.name.is_some());
            let unknown = owner.open.iter().filter(|open| open.holder != 0 && !is_known(open.holder));
            holders.extend(unknown.map(|open| (id, open.seq, open.holder)));
        }
        for id in gone {
            self.leftover(Table::Sessions, &keys::owner(id, OwnerKey::Session), "its session or group is gone");
        }
        for (id, seq, holder) in holders {
            let key = keys::owner(id, OwnerKey::Open(seq));
            self.leftover(Table::Sessions, &key, &format!("session {holder}, which holds it, is gone"));
        }
    }

    fn body_record(&mut self, key: &[u8], value: &[u8]) -> Result<(), Unreadable> {
        if let Some(id) = keys::parse_body_count(key) {
            self.bodies.entry(id).or_default().count = Some(record::get_count(value)?);
            return Ok(());
        }
        let id = keys::parse_body(key).ok_or(Unreadable::Key)?;
        self.bodies.entry(id).or_default().is_stored = true;
        self.given(Table::Bodies, key, id);
        record::get_message(value).map(drop)
    }

    fn entry(&mut self, key: &[u8], value: &[u8]) -> Result<(), Unreadable> {
        let (log, seq) = keys::parse_entry(key).ok_or(Unreadable::Key)?;
        let (head, message) = record::get_entry(value)?;
        let is_settled = match (self.owners.get_mut(&log), self.garbage.get(&log)) {
            (Some(owner), _) => {
                let (last, is_less) = (owner.last, head.log_bytes < owner.last_bytes);
                (owner.last, owner.last_bytes) = (seq, head.log_bytes);
                if let Ok(at) = owner.open.binary_search_by_key(&seq, |open| open.seq) {
                    owner.open.remove(at);
                }
                let is_settled = owner.state.is_settled(seq);
                if is_less {
                    self.fault(Table::Logs, key, format!("it counts fewer bytes than entry {last}"));
                }
                is_settled
            }
            (None, Some(garbage)) => garbage.state.is_settled(seq),
            (None, None) => {
                self.leftover(Table::Logs, key, "its session or group is gone");
                true
            }
        };
        if let EntryMessage::Shared(id) = message
            && !is_settled
        {
            let body = self.bodies.entry(id).or_default();
            body.references += 1;
            if !body.is_stored {
                return Err(Unreadable::NoBody(id));
            }
        }
        Ok(())
    }

    /// What is in flight is in its log.
    fn logs(&mut self) {
        let mut missing = Vec::new();
        for (&id, owner) in self.owners.iter().filter(|(_, owner)| owner.name.is_some()) {
            let waiting = owner.open.iter().filter(|open| !owner.state.is_settled(open.seq));
            missing.extend(waiting.map(|open| keys::owner(id, OwnerKey::Open(open.seq))));
        }
        for key in missing {
            self.fault(Table::Sessions, &key, "its queue does not have it".to_owned());
        }
    }

    fn bodies(&mut self) {
        for (id, body) in std::mem::take(&mut self.bodies) {
            let counted = body.count.unwrap_or(0);
            let problem = match (body.is_stored, body.references) {
                (false, 0) => "it is counted, and not stored".to_owned(),
                // Told with each entry that refers to it.
                (false, _) => continue,
                (true, references) if references == counted => continue,
                (true, references) => format!("{references} entries refer to it, {counted} are counted"),
            };
            self.fault(Table::Bodies, &keys::body_count(id), problem);
        }
    }

    fn retained(&mut self, key: &[u8], value: &[u8]) -> Result<(), Unreadable> {
        let (message, _) = record::get_retained(value)?;
        let is_there = message.topic.as_str().as_bytes() == key;
        if is_there { Ok(()) } else { Err(Unreadable::Invalid("topic")) }
    }

    fn filter(&mut self, key: &[u8], filter: &str) {
        if let Err(problem) = Filter::parse(filter) {
            self.fault(Table::Sessions, key, format!("the topic filter {filter:?} is not valid: {problem}"));
        }
    }

    /// `id` stands in the store: it must not be given again.
    fn given(&mut self, table: Table, key: &[u8], id: u64) {
        if id >= self.next_id {
            self.fault(table, key, format!("its id {id} was never given: the next one is {}", self.next_id));
        }
    }

    fn fault(&mut self, table: Table, key: &[u8], problem: String) {
        self.checked.faults += 1;
        let of = self.describe(table, key);
        (self.found)(Finding { table, key: key.to_vec(), of, problem, is_fault: true });
    }

    fn leftover(&mut self, table: Table, key: &[u8], problem: &str) {
        self.checked.leftovers += 1;
        let of = self.describe(table, key);
        (self.found)(Finding { table, key: key.to_vec(), of, problem: problem.to_owned(), is_fault: false });
    }

    fn describe(&self, table: Table, key: &[u8]) -> String {
        let name = |id: LogId| {
            let name = self.owners.get(&id).and_then(|owner| owner.name.clone());
            name.unwrap_or_else(|| format!("session or group {id}"))
        };
        let known = match table {
            _ if key.is_empty() => Some("from its beginning".to_owned()),
            Table::Meta => keys::parse_garbage(key).map(|log| format!("discarded log {log}")),
            Table::Sessions => match keys::parse_owner(key) {
                Some((id, OwnerKey::Subscription(filter))) => Some(format!("{}, subscription {filter:?}", name(id))),
                Some((id, OwnerKey::Received(packet_id))) => {
                    Some(format!("{}, inbound packet id {packet_id}", name(id)))
                }
                Some((id, OwnerKey::Open(seq))) => Some(format!("{}, entry {seq} in flight", name(id))),
                Some((id, OwnerKey::LogState)) => Some(format!("{}, state of its queue", name(id))),
                Some((id, OwnerKey::Session | OwnerKey::Group)) => Some(name(id)),
                None => keys::parse_will(key).map(|id| format!("will of {}", name(id))),
            },
            Table::Logs => {
                keys::parse_entry(key).map(|(log, seq)| format!("entry {seq} in the queue of {}", name(log)))
            }
            Table::Retained => std::str::from_utf8(key).ok().map(|topic| format!("retained message of {topic:?}")),
            Table::Bodies => {
                keys::parse_body(key).or_else(|| keys::parse_body_count(key)).map(|id| format!("shared body {id}"))
            }
        };
        known.unwrap_or_else(|| match table {
            Table::Meta => String::from_utf8_lossy(key).into_owned(),
            _ => "an unknown key".to_owned(),
        })
    }
}

fn after(mut key: Key) -> Key {
    key.push(0);
    key
}

const PAGE_RECORDS: usize = 1024;
const PAGE_BYTES: usize = 1 << 20;
