//! *storelimit*: a bare loop that writes to the engine what the broker would, and reads it back, without a broker. What it reaches is what
//! a broker on this disk could reach at most; the other figures are ratios to it.

use std::{
    error::Error,
    fs::File,
    io::{Seek, Write},
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};

use pinnace::{
    mqtt::{Message, QoS, TopicName},
    storage::{self, Config, Durability, Engine, EntryHead, Op, Ops, Store, Table, Visit},
};

type Fault = Box<dyn Error + Send + Sync>;

/// What to write.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub durability: Durability,
    /// Bytes of each message.
    pub payload_bytes: usize,
    /// The records go to so many logs in turn.
    pub logs: u64,
    /// Records of one batch, as the broker was seen to write them.
    pub batch: u64,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub records_per_sec: f64,
    /// Of all threads of the engine.
    pub cpu_micros: f64,
}

/// The bare loop.
pub struct Writer {
    engine: Arc<dyn Engine>,
    load: Load,
    entry: Vec<u8>,
    ops: Ops,
    written: u64,
}

impl Writer {
    pub fn open(dir: &Path, load: Load) -> Result<Self, Fault> {
        let engine = storage::durable_engine(dir, &config(load.durability))?;
        Ok(Self { engine, load, entry: entry(load.payload_bytes)?, ops: Ops::default(), written: 0 })
    }

    /// Writes one batch.
    pub fn batch(&mut self) -> Result<(), Fault> {
        self.ops.clear(usize::MAX);
        for _ in 0..self.load.batch {
            let key = key(self.written % self.load.logs + 1, self.written / self.load.logs + 1);
            self.ops.put(Table::Logs, &key, |out| out.extend_from_slice(&self.entry));
            self.written += 1;
        }
        Ok(self.engine.write(&self.ops, self.load.durability == Durability::Fsync)?)
    }
}

/// Writes for so long.
pub fn write(dir: &Path, load: Load, measured: Duration) -> Result<Outcome, Fault> {
    let mut writer = Writer::open(dir, load)?;
    let (start, cpu) = (Instant::now(), cpu_time());
    while start.elapsed() < measured {
        writer.batch()?;
    }
    let secs = start.elapsed().as_secs_f64();
    let cpu = (cpu_time() - cpu).as_secs_f64();
    writer.engine.close()?;
    let records = writer.written.max(1) as f64;
    Ok(Outcome { records_per_sec: records / secs, cpu_micros: cpu * 1e6 / records })
}

/// Writes `records` of one log, and reads them back in one scan: records a second of the scan.
pub fn scan(dir: &Path, payload_bytes: usize, records: u64) -> Result<f64, Fault> {
    let load = Load { durability: Durability::Os, payload_bytes, logs: 1, batch: 1000 };
    let mut writer = Writer::open(dir, load)?;
    while writer.written < records {
        writer.batch()?;
    }
    let (start, mut bytes, mut found) = (Instant::now(), 0, 0);
    writer.engine.scan(Table::Logs, &key(1, 0), &key(2, 0), &mut |key, value| {
        bytes += key.len() + value.len();
        found += 1;
        ControlFlow::Continue(())
    })?;
    let secs = start.elapsed().as_secs_f64();
    writer.engine.close()?;
    if found != writer.written {
        return Err(format!("{found} records of {bytes} bytes came back of {}", writer.written).into());
    }
    Ok(found as f64 / secs)
}

/// The time of one write and `fdatasync` after another in a file that has its place on the disk, as a write-ahead log has: the median of
/// `count`.
pub fn fdatasync(dir: &Path, count: usize) -> Result<Duration, Fault> {
    const BYTES: usize = 256;
    let mut file = File::create(dir.join("fdatasync"))?;
    file.write_all(&vec![0; BYTES * count])?;
    file.sync_all()?;
    file.rewind()?;
    let mut took = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        file.write_all(&[7; BYTES])?;
        file.sync_data()?;
        took.push(start.elapsed());
    }
    took.sort_unstable();
    took.get(count / 2).copied().ok_or_else(|| "nothing was measured".into())
}

fn config(durability: Durability) -> Config {
    Config { durability, ..Config::default() }
}

fn key(log: u64, seq: u64) -> [u8; 16] {
    (u128::from(log) << 64 | u128::from(seq)).to_be_bytes()
}

/// An entry as the store encodes it: the store writes one, and an engine that listens gives it away.
fn entry(payload_bytes: usize) -> Result<Vec<u8>, Fault> {
    let (sender, entries) = channel();
    let store = Store::stepped(Arc::new(Listening(sender)), &config(Durability::Os))?;
    let message = Message {
        topic: TopicName::parse("load/site-7/device-0042/a")?,
        payload: vec![b'.'; payload_bytes].into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: Box::default(),
        expires_at: None,
        publisher: 7,
    };
    let (qos, subscription_ids) = (QoS::AtLeastOnce, Default::default());
    let head = EntryHead { qos, retain: false, subscription_ids, publisher: 7, log_bytes: 1 << 30 };
    store.write(|batch| {
        let body = batch.body(&message, 1);
        batch.append(1, 1, &head, &body);
        batch.require_durable();
    });
    store.step();
    drop(store);
    Ok(entries.try_recv()?)
}

/// User and system time of all threads that this process has or had.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// An engine that stores nothing, and gives away the log entries that come.
struct Listening(Sender<Vec<u8>>);

impl Engine for Listening {
    fn name(&self) -> &'static str {
        "none"
    }

    fn write(&self, ops: &Ops, _: bool) -> Result<(), storage::Error> {
        for op in ops.iter() {
            if let Op::Put { table: Table::Logs, value, .. } = op {
                // Nobody listens any more.
                let _ = self.0.send(value.to_vec());
            }
        }
        Ok(())
    }

    fn get(&self, _: Table, _: &[u8]) -> Result<Option<Vec<u8>>, storage::Error> {
        Ok(None)
    }

    fn scan(&self, _: Table, _: &[u8], _: &[u8], _: &mut Visit<'_>) -> Result<(), storage::Error> {
        Ok(())
    }

    fn last_key(&self, _: Table, _: &[u8], _: &[u8]) -> Result<Option<Vec<u8>>, storage::Error> {
        Ok(None)
    }

    fn sync(&self) -> Result<(), storage::Error> {
        Ok(())
    }

    fn reopen(&self) -> Result<(), storage::Error> {
        Ok(())
    }

    fn close(&self) -> Result<(), storage::Error> {
        Ok(())
    }
}
