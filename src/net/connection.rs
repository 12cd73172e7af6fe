//! The loop that drives one connection: read, hand over, write, in turns that are bounded.
//!
//! Each turn reads once, takes the mail, hands over what the packets did in one write of the store, wakes each receiver once and writes
//! once. Must not know what a packet means (the session) or who gets a message (the broker).

mod delivery;
mod replay;

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::{Future, poll_fn},
    io::IoSlice,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::time::Sleep;

use delivery::Reader;
use replay::Replaying;

use super::{
    authenticate::{self, Proof},
    ended::Ended,
    transport::Transport,
};
use crate::{
    broker::{self, Broker, Held, Owner, Signal, Turn, is_of_broker},
    clock,
    metrics::{Counts, Limit, Metrics},
    mqtt::{
        Outbox, Packet, Shown, Tally, Timestamp,
        codec::{self, Sender},
        frame::{self, Cut},
        packet::Disconnect,
    },
    session::{Commit, Delivery, Request, Source, Violation},
};

/// A connection whose CONNECT was accepted.
#[derive(Debug)]
pub(super) struct Connection {
    transport: Transport,
    broker: Arc<Broker>,
    owner: Owner,
    signal: Arc<Signal>,
    /// Where CONNECT named an Authentication Method.
    proof: Option<Box<Proof>>,
    outbox: Outbox,
    turn: Turn,
    /// The beginning of a packet whose rest has not come.
    partial: Vec<u8>,
    /// `partial` holds whole packets, from here on: the first is a PUBLISH that the client may not publish yet.
    held: Option<usize>,
    /// What the broker tells of itself, for new subscriptions; each waits until its SUBACK has left.
    told: VecDeque<(u64, Delivery)>,
    replaying: Replaying,
    /// It went on in this turn.
    replayed: bool,
    /// What comes live is sent before what is retained, the next time that there is room.
    live_first: bool,
    mail: VecDeque<Delivery>,
    /// How much of `mail` is sent.
    sent: usize,
    /// Packets and deliveries since the connection last rested.
    handled: usize,
    reader: Reader,
    /// For the pages of the log that are not sent yet.
    holds: Option<Held>,
    /// The session's log holds more than it may: its oldest messages are to be dropped.
    overfull: bool,
    /// The generation of the rules that what waits here was judged by.
    rules: u64,
    /// They changed a short while ago, at that time.
    judging: bool,
    rules_since: Timestamp,
    deadline: Option<Pin<Box<Sleep>>>,
    /// The Keep Alive has run out; one more look at the stream is due.
    overdue: bool,
    paused: bool,
    /// The broker stops: what is in flight is completed, and nothing new begun.
    draining: bool,
    flushing: bool,
    too_fast_said: Timestamp,
}

enum Progress {
    Some,
    None,
}

impl Connection {
    pub(super) fn new(
        transport: Transport,
        broker: Arc<Broker>,
        owner: Owner,
        signal: Arc<Signal>,
        proof: Option<Box<Proof>>,
        outbox: Outbox,
        partial: Vec<u8>,
    ) -> Box<Self> {
        let rules = broker.auth.generation();
        Box::new(Self {
            transport,
            broker,
            owner,
            signal,
            proof,
            outbox,
            turn: Turn::default(),
            partial,
            held: None,
            told: VecDeque::new(),
            replaying: Replaying::Nothing,
            replayed: false,
            live_first: false,
            mail: VecDeque::new(),
            sent: 0,
            handled: 0,
            reader: Reader::Closed,
            holds: None,
            overfull: false,
            rules,
            judging: false,
            rules_since: Timestamp::default(),
            deadline: None,
            overdue: false,
            paused: false,
            draining: false,
            flushing: false,
            too_fast_said: Timestamp::default(),
        })
    }

    /// Runs until the connection ends. Afterwards the session is back in the registry; the stream is left to be closed.
    pub(super) async fn run(mut self: Box<Self>) -> (Ended, Transport, Outbox) {
        // Packets may have come with the CONNECT.
        let early = std::mem::take(&mut self.partial);
        let mut ended = self.begin(&early);
        if ended.is_none() {
            ended = Some(poll_fn(|cx| self.poll(cx)).await);
        }
        let ended = ended.unwrap_or(Ended::Closed);
        self.answer_last(&ended).await;
        if let Some(limit) = ended.limit() {
            self.turn.counts.limited(limit);
        }
        self.say_goodbye(&ended);
        self.count_unsent();
        self.owner.ended = ended.for_session();
        if self.owner.ended == broker::Ended::Normally {
            self.discard_will().await;
        }
        let Self { owner, transport, outbox, .. } = *self;
        drop(owner);
        (ended, transport, outbox)
    }

    fn begin(&mut self, early: &[u8]) -> Option<Ended> {
        let now = clock::now();
        let taken = self.take_packets(early, now);
        self.hand_over(now);
        match taken {
            Ok(taken) => {
                self.keep(early.get(taken..));
                None
            }
            Err(ended) => Some(ended),
        }
    }

    /// Packets that came in one segment with what ended the connection are answered like all others: once what they stand for is durable, or
    /// is known not to be.
    async fn answer_last(&mut self, ended: &Ended) {
        match ended {
            // An answer that could not be given ended it: those behind it must not overtake it.
            Ended::Violated(Violation::NotDurable | Violation::AnswerTooLarge) => return,
            Ended::Disconnected(_)
            | Ended::Malformed(_)
            | Ended::Violated(_)
            | Ended::NotAuthenticated(_)
            | Ended::StoreFailed
            | Ended::ShuttingDown => {}
            _ => return,
        }
        let broker = self.broker.clone();
        let Some(client) = &mut self.owner.client else { return };
        let outbox = &mut self.outbox;
        let answered = poll_fn(|cx| {
            // A failed commit ends the connection, which is ending.
            if client.session.release(|lsn| broker.commit(lsn), clock::now(), outbox).is_err() {
                return Poll::Ready(());
            }
            match client.session.awaited() {
                Some(lsn) if broker.when_committed(lsn, cx.waker()) == Commit::Pending => Poll::Pending,
                Some(_) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                None => Poll::Ready(()),
            }
        });
        let _ = tokio::time::timeout(LAST_WAIT, answered).await;
    }

    /// The stream is closed only when no crash can bring the Will back.
    async fn discard_will(&mut self) {
        let Some(lsn) = self.owner.client.as_mut().and_then(|client| self.broker.discard_will(client)) else { return };
        let discarded = poll_fn(|cx| match self.broker.when_committed(lsn, cx.waker()) {
            Commit::Pending => Poll::Pending,
            _ => Poll::Ready(()),
        });
        let _ = tokio::time::timeout(LAST_WAIT, discarded).await;
    }

    fn say_goodbye(&mut self, ended: &Ended) {
        let Some(client) = &self.owner.client else { return };
        if let Some(reason) = ended.reason()
            && client.session.version().is_v5()
        {
            let mut disconnect = match (ended, self.broker.farewell()) {
                (Ended::ShuttingDown, Some(farewell)) => farewell.disconnect(),
                _ => Disconnect::new(reason),
            };
            disconnect.reason_string = Some(ended.to_string());
            if self.outbox.packet(&Packet::Disconnect(disconnect.clone())).is_err() {
                disconnect.server_reference = None;
                let _ = self.outbox.packet(&Packet::Disconnect(disconnect));
            }
        }
    }

    /// What the session's log or a group holds comes again; the rest is lost with the connection.
    fn count_unsent(&mut self) {
        let is_lost = |one: &&Delivery| one.source == Source::Direct && !is_of_broker(&one.message.topic);
        let lost = self.mail.iter().skip(self.sent).filter(is_lost).count();
        self.turn.counts.dropped_not_persistent += lost as u64;
        count_sent(&mut self.outbox, &mut self.turn.counts);
        self.broker.finish(&mut self.turn);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        for _ in 0..TURNS_PER_POLL {
            match self.turn(cx) {
                Ok(Progress::Some) if std::mem::take(&mut self.replayed) => {
                    // It goes on once the sockets were looked at: others have less to send, and wait for it.
                    let _ = pin!(tokio::task::yield_now()).poll(cx);
                    return Poll::Pending;
                }
                Ok(Progress::Some) => {}
                Ok(Progress::None) => return Poll::Pending,
                Err(ended) => return Poll::Ready(ended),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Result<Progress, Ended> {
        let now = clock::now();
        let raised = self.signal.take(cx.waker());
        let worked = self.work(cx, raised, now);
        // Whatever the packets did before one of them failed stands, and those who were given something are told.
        self.hand_over(now);
        let progress = worked?;
        if let Some(client) = &mut self.owner.client {
            let broker = &self.broker;
            client.session.release(|lsn| broker.commit(lsn), now, &mut self.outbox)?;
            if let Some(lsn) = client.session.awaited()
                && self.broker.when_committed(lsn, cx.waker()) != Commit::Pending
            {
                return self.write(cx).map(|_| Progress::Some);
            }
        }
        match (progress, self.write(cx)?) {
            (Progress::None, Progress::None) => {
                self.rest();
                Ok(Progress::None)
            }
            _ => Ok(Progress::Some),
        }
    }

    fn work(&mut self, cx: &mut Context<'_>, raised: u32, now: Timestamp) -> Result<Progress, Ended> {
        if raised & Signal::STORE_FAILED != 0 && self.is_logged() {
            return Err(Ended::StoreFailed);
        }
        if raised & Signal::TAKEN_OVER != 0 {
            return Err(self.last_words(cx, now));
        }
        if raised & Signal::SHUTDOWN != 0 {
            return Err(Ended::ShuttingDown);
        }
        self.draining |= raised & Signal::DRAIN != 0;
        // Before anything more is read: a client that publishes without a pause is at rest for a moment only.
        if self.draining && self.is_at_rest(now)? {
            return Err(Ended::ShuttingDown);
        }
        if raised & Signal::QUEUE_FULL != 0 {
            return Err(Ended::QueueFull);
        }
        self.overfull |= raised & Signal::OVERFULL != 0;
        let read = self.read(cx, now)?;
        let before = self.outbox.len();
        self.replayed = !self.draining && self.deliver(cx, now)?;
        self.check_deadline(cx, now)?;
        let progress = matches!(read, Progress::Some) || self.replayed || self.outbox.len() != before;
        Ok(if progress { Progress::Some } else { Progress::None })
    }

    fn is_at_rest(&mut self, now: Timestamp) -> Result<bool, Ended> {
        let Some(client) = &mut self.owner.client else { return Ok(true) };
        let broker = &self.broker;
        client.session.release(|lsn| broker.commit(lsn), now, &mut self.outbox)?;
        Ok(client.session.is_at_rest())
    }

    /// Takes what the client sent before it came back on another connection: a QoS 0 PUBLISH is not lost, a DISCONNECT still discards the
    /// Will and changes the expiry. Bounded, since the new connection waits.
    fn last_words(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Ended {
        for _ in 0..TURNS_PER_POLL {
            match self.read(cx, now) {
                Ok(Progress::Some) => {}
                Ok(Progress::None) | Err(Ended::Closed | Ended::Broken(_)) => break,
                Err(ended) => return ended,
            }
        }
        Ended::TakenOver
    }

    fn is_logged(&self) -> bool {
        self.owner.client.as_ref().is_some_and(|client| client.session.logged)
    }

    /// Reads once, unless there is a reason to let the client wait.
    fn read(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Result<Progress, Ended> {
        if self.must_pause(cx, now) {
            self.paused = true;
            return Ok(Progress::None);
        }
        if std::mem::take(&mut self.paused)
            && let Some(client) = &mut self.owner.client
        {
            client.session.read_resumed(now);
        }
        if let Some(from) = self.held.take() {
            let kept = std::mem::take(&mut self.partial);
            let taken = from + self.take_packets(kept.get(from..).unwrap_or_default(), now)?;
            if self.held.is_some() {
                (self.partial, self.held) = (kept, Some(taken));
            } else {
                self.keep(kept.get(taken..));
            }
            return Ok(Progress::Some);
        }
        if self.partial.len() >= SHARED_BUFFER / 2 {
            return self.read_large(cx, now);
        }
        BUFFER.with_borrow_mut(|buffer| {
            let kept = self.partial.len();
            let Some((start, space)) = buffer.split_at_mut_checked(kept) else { return Ok(Progress::None) };
            let most = self.owner.client.as_ref().and_then(|client| client.session.read_at_most());
            let most = most.map_or(space.len(), |most| most.min(space.len()));
            let space = space.get_mut(..most).unwrap_or_default();
            let Poll::Ready(read) = self.transport.poll_read(cx, space) else { return Ok(Progress::None) };
            let read = read?;
            if read == 0 {
                return Err(Ended::Closed);
            }
            start.copy_from_slice(&self.partial);
            self.partial.clear();
            self.turn.counts.bytes_received += read as u64;
            let bytes = buffer.get(..kept + read).unwrap_or_default();
            let taken = self.take_packets(bytes, now)?;
            self.keep(bytes.get(taken..));
            Ok(Progress::Some)
        })
    }

    /// Reads on in a packet that is too large for the shared buffer. Memory grows with what came, not with what was announced.
    fn read_large(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Result<Progress, Ended> {
        let kept = self.partial.len();
        let mut most = kept.min(SHARED_BUFFER);
        // What follows the packet stays with a client whose rate is limited.
        if self.owner.client.as_ref().is_some_and(|client| client.session.read_at_most().is_some())
            && let Cut::Partial { needed } = frame::cut(&self.partial, self.max_packet_size())?
        {
            most = most.min(needed.saturating_sub(kept)).max(1);
        }
        self.partial.resize(kept + most, 0);
        let space = self.partial.get_mut(kept..).unwrap_or_default();
        let read = match self.transport.poll_read(cx, space) {
            Poll::Pending => {
                self.partial.truncate(kept);
                return Ok(Progress::None);
            }
            Poll::Ready(read) => read?,
        };
        if read == 0 {
            return Err(Ended::Closed);
        }
        self.partial.truncate(kept + read);
        self.turn.counts.bytes_received += read as u64;
        if let Cut::Whole(_) = frame::cut(&self.partial, self.max_packet_size())? {
            let whole = std::mem::take(&mut self.partial);
            let taken = self.take_packets(&whole, now)?;
            self.keep(whole.get(taken..));
        }
        Ok(Progress::Some)
    }

    /// Keeps what was not taken of what was read.
    fn keep(&mut self, rest: Option<&[u8]>) {
        self.partial = rest.map(<[u8]>::to_vec).unwrap_or_default();
    }

    fn max_packet_size(&self) -> u32 {
        self.broker.limits.max_packet_size_bytes.get()
    }

    /// Takes whole packets out of `bytes`: all, or those before the first PUBLISH that is to be held back. How many bytes they were.
    fn take_packets(&mut self, bytes: &[u8], now: Timestamp) -> Result<usize, Ended> {
        let max = self.max_packet_size();
        let mut taken = 0;
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            match frame::cut(rest, max)? {
                Cut::Whole(frame) => {
                    if frame.is_publish() && self.publishes_too_fast(now) {
                        self.held = Some(0);
                        return Ok(taken);
                    }
                    taken += frame.len;
                    self.handled += 1;
                    self.turn.counts.packets_received += 1;
                    self.take_packet(frame, now)?;
                }
                Cut::Partial { .. } => {
                    if let (Some(&first), Some(client)) = (rest.first(), &self.owner.client) {
                        frame::check_flags(first, client.session.version())?;
                    }
                    return Ok(taken);
                }
            }
        }
    }

    fn publishes_too_fast(&self, now: Timestamp) -> bool {
        self.owner.client.as_ref().is_some_and(|client| client.session.publish_resumes_at(now).is_some())
    }

    fn take_packet(&mut self, frame: frame::Frame<'_>, now: Timestamp) -> Result<(), Ended> {
        let Some(client) = &mut self.owner.client else { return Err(Ended::StoreFailed) };
        let packet = codec::decode(frame, client.session.version(), Sender::Client)?;
        let broker = &self.broker;
        let turn = &mut self.turn;
        match client.session.receive(packet, now, &mut self.outbox)? {
            Request::Nothing => {}
            Request::Publish { publish, alias } => broker.publish(client, turn, &publish, alias, now)?,
            Request::Duplicate(packet_id) => broker.duplicate(client, turn, packet_id),
            Request::Release(packet_id) => broker.release(client, turn, packet_id),
            Request::Settled(settled) => broker.settle(client, turn, settled, now),
            Request::Subscribe(subscribe) => {
                let told = broker.subscribe(client, turn, subscribe, self.told.len(), now);
                let gate = client.session.queued();
                self.told.extend(told.into_iter().map(|delivery| (gate, delivery)));
            }
            Request::Unsubscribe(unsubscribe) => broker.unsubscribe(client, turn, unsubscribe, now),
            Request::Authenticate { begins, data } => {
                let (rules, counts) = (broker.auth.rules(), &mut turn.counts);
                authenticate::again(
                    client,
                    &rules,
                    self.proof.as_mut(),
                    begins,
                    data.as_deref(),
                    &mut self.outbox,
                    counts,
                )?;
            }
            Request::Disconnect(disconnect) => {
                if let Some(secs) = disconnect.session_expiry_secs {
                    broker.set_session_expiry(client, secs);
                }
                return Err(Ended::Disconnected(disconnect.reason));
            }
        }
        Ok(())
    }

    /// One write of the store for the turn, and one wake for each receiver.
    fn hand_over(&mut self, now: Timestamp) {
        if let Some(client) = &mut self.owner.client {
            self.broker.dispatch(client, &mut self.turn, now);
        }
        self.broker.finish(&mut self.turn);
    }

    /// Reading pauses for control packets that were not sent and for a full batch; never because deliveries wait, since the
    /// acknowledgements that make room for them must get in.
    fn must_pause(&mut self, cx: &Context<'_>, now: Timestamp) -> bool {
        let Some(client) = &self.owner.client else { return true };
        if client.session.publish_resumes_at(now).is_some() {
            if !self.paused {
                self.turn.counts.limited(Limit::PublishRate);
                self.say_too_fast(now);
            }
            return true;
        }
        if client.session.waiting() >= REPLIES_MAX || self.outbox.len() >= OUTBOX_CONTROL_MAX + self.largest_sent() {
            return true;
        }
        if self.draining && client.session.waiting() > 0 {
            return true;
        }
        !self.broker.has_room(cx.waker())
    }

    fn say_too_fast(&mut self, now: Timestamp) {
        let Some(client) = &self.owner.client else { return };
        if now.millis_since(self.too_fast_said) > SAID_EVERY_MILLIS {
            self.too_fast_said = now;
            let client = Shown(&client.session.client_id);
            tracing::info!(%client, "publishes faster than session.max_publish_..._per_sec: reading pauses");
        }
    }

    fn largest_sent(&self) -> usize {
        usize::try_from(self.max_packet_size()).unwrap_or(usize::MAX)
    }

    /// The Keep Alive; it is suspended while reading pauses by our own choice.
    fn check_deadline(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Result<(), Ended> {
        let Some(client) = &self.owner.client else { return Ok(()) };
        if self.paused {
            if let Some(at) = client.session.publish_resumes_at(now) {
                self.wake_at(cx, at);
            }
            return Ok(());
        }
        let Some(deadline) = client.session.keep_alive_deadline() else { return Ok(()) };
        let sleep =
            self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(clock::instant(deadline).into())));
        while sleep.as_mut().poll(cx).is_ready() {
            if deadline > now {
                self.overdue = false;
                sleep.as_mut().reset(clock::instant(deadline).into());
                continue;
            }
            // After the process stood still, what the client sent in time may not have been seen yet.
            if std::mem::replace(&mut self.overdue, true) {
                return Err(Violation::KeepAliveTimeout.into());
            }
            sleep.as_mut().reset(clock::instant(now.plus_millis(LAST_LOOK_MILLIS)).into());
        }
        Ok(())
    }

    /// Another turn at that time.
    fn wake_at(&mut self, cx: &mut Context<'_>, at: Timestamp) {
        let at = clock::instant(at).into();
        let sleep = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        if sleep.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    /// Writes what the stream takes.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<Progress, Ended> {
        let mut progress = Progress::None;
        count_sent(&mut self.outbox, &mut self.turn.counts);
        while !self.outbox.is_empty() {
            let Poll::Ready(written) = write_once(&mut self.transport, &mut self.outbox, cx) else {
                return Ok(progress);
            };
            self.turn.counts.bytes_sent += written? as u64;
            self.flushing = true;
            progress = Progress::Some;
        }
        if self.holds.is_some() && self.sent >= self.mail.len() {
            self.holds = None;
        }
        if self.flushing && self.transport.poll_flush(cx)?.is_ready() {
            self.flushing = false;
        }
        Ok(progress)
    }

    /// An idle connection holds no buffers.
    fn rest(&mut self) {
        self.broker.finish(&mut self.turn);
        // Much to do means that more will come.
        if std::mem::take(&mut self.handled) > RESTLESS {
            return;
        }
        if self.outbox.is_empty() {
            self.outbox.release();
        }
        if self.mail.is_empty() {
            self.mail = VecDeque::new();
            if let Some(client) = &self.owner.client {
                client.receiver.rest();
            }
        }
        if self.told.is_empty() && self.told.capacity() > 0 {
            self.told = VecDeque::new();
        }
        self.turn.release();
    }
}

/// Writes what is left of `outbox`, says goodbye to the stream and waits until the client has seen it, so that what was sent last is not
/// lost to a reset.
pub(super) async fn close(mut transport: Transport, mut outbox: Outbox, metrics: &Metrics) {
    let mut sink = [0; 1024];
    let mut sunk = 0;
    let mut counts = Counts::default();
    let closing = poll_fn(|cx| -> Poll<std::io::Result<()>> {
        ready!(poll_send(&mut transport, &mut outbox, &mut counts, cx))?;
        ready!(transport.poll_shutdown(cx))?;
        loop {
            let read = ready!(transport.poll_read(cx, &mut sink))?;
            sunk += read;
            if read == 0 || sunk > SUNK_MAX {
                return Poll::Ready(Ok(()));
            }
        }
    });
    // The client may be gone already, or never read: then there is nobody to tell.
    let _ = tokio::time::timeout(CLOSE_WAIT, closing).await;
    metrics.add(&mut counts);
}

/// Counts what was put into `outbox` since the last time.
fn count_sent(outbox: &mut Outbox, counts: &mut Counts) {
    let Tally { packets, publishes, payload_bytes } = outbox.take_tally();
    counts.packets_sent += packets;
    counts.messages_delivered += publishes;
    counts.payload_bytes_sent += payload_bytes;
}

/// Sends all of `outbox`, and counts it.
pub(super) fn poll_send(
    transport: &mut Transport,
    outbox: &mut Outbox,
    counts: &mut Counts,
    cx: &mut Context<'_>,
) -> Poll<std::io::Result<()>> {
    count_sent(outbox, counts);
    while !outbox.is_empty() {
        counts.bytes_sent += ready!(write_once(transport, outbox, cx))? as u64;
    }
    transport.poll_flush(cx)
}

fn write_once(transport: &mut Transport, outbox: &mut Outbox, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
    let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
    let mut count = 0;
    for (slot, bytes) in slices.iter_mut().zip(outbox.slices()) {
        *slot = IoSlice::new(bytes);
        count += 1;
    }
    let written = ready!(transport.poll_write(cx, slices.get(..count).unwrap_or_default()))?;
    if written == 0 {
        return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
    }
    outbox.advance(written);
    Poll::Ready(Ok(written))
}

thread_local! {
    /// One read buffer per worker thread, not per connection.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SHARED_BUFFER].into_boxed_slice());
}

const SHARED_BUFFER: usize = 256 * 1024;
const TURNS_PER_POLL: usize = 8;
/// A connection that handled more than this before it rests keeps its buffers.
const RESTLESS: usize = 8;
/// Deliveries are taken while less than this waits to be written.
const OUTBOX_MAX: usize = 256 * 1024;
/// Reading pauses when this much more waits: it can only be control packets.
const OUTBOX_CONTROL_MAX: usize = OUTBOX_MAX + 64 * 1024;
/// Reading pauses when so many replies wait for a commit.
const REPLIES_MAX: usize = 8192;
const SLICES_PER_WRITE: usize = 32;
/// How often the log says that a client is too fast.
const SAID_EVERY_MILLIS: u64 = 60_000;
const LAST_LOOK_MILLIS: u64 = 100;
/// How long a session stays with a connection that has ended, for a commit: who claims it must have it within a second.
const LAST_WAIT: std::time::Duration = std::time::Duration::from_millis(400);
const CLOSE_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
const SUNK_MAX: usize = 1 << 20;
