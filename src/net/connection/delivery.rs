//! What a connection sends to its client: the mailbox, the session's log where the mailbox is behind, and what `replay` gives.
//!
//! Must not know what comes from the client, nor how bytes are written.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{Connection, Ended, OUTBOX_MAX};
use crate::{
    broker::{Broker, Client, LogPage, Reading, Turn, is_of_broker},
    clock,
    metrics::DropReason,
    mqtt::Timestamp,
    session::{Commit, Delivered, Delivery, Source},
};

/// Reads the session's log, where the mailbox is behind.
#[derive(Debug, Default)]
pub(super) enum Reader {
    /// The mailbox is open.
    #[default]
    Closed,
    /// Read up to `read`; waits for the commit that holds the log's end.
    Waiting { read: u64, tail: u64, commit: u64 },
    /// A page after `read` is on its way.
    Reading { read: u64, tail: u64, page: Reading },
    /// All up to `read` stands in the mail.
    Page { read: u64 },
}

impl Connection {
    /// Deliveries go to the outbox while it is below its bound. What is retained and what comes live take turns at the first place, so that
    /// neither waits until the other ends. `true` where a replay went on.
    pub(super) fn deliver(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Result<bool, Ended> {
        self.follow_rules(now);
        if self.overfull {
            self.drop_oldest(cx, now)?;
        }
        self.send_told(now);
        let (replayed, had_its_turn);
        if self.live_first {
            let before = self.outbox.len();
            self.send_live(cx, now)?;
            had_its_turn = self.outbox.len() > before;
            replayed = self.replay(cx, now);
        } else {
            replayed = self.replay(cx, now);
            had_its_turn = replayed;
            self.send_live(cx, now)?;
        }
        self.live_first ^= had_its_turn;
        Ok(replayed)
    }

    /// Sends what the broker tells of itself: always at QoS 0.
    fn send_told(&mut self, now: Timestamp) {
        while self.outbox.len() < OUTBOX_MAX
            && let Some((gate, _)) = self.told.front()
            && self.owner.client.as_ref().is_some_and(|client| client.session.has_left(*gate))
            && let Some((_, delivery)) = self.told.pop_front()
        {
            self.send(&delivery, now);
        }
    }

    /// First the mailbox, then the log.
    fn send_live(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Result<(), Ended> {
        while self.outbox.len() < OUTBOX_MAX {
            if self.sent < self.mail.len() {
                if !self.send_mail(now) {
                    return Ok(());
                }
                continue;
            }
            if !self.take_mail() && !self.read_log(cx)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends on from the mail until the outbox has its bound. `false` where the client's window is full.
    fn send_mail(&mut self, now: Timestamp) -> bool {
        let mail = std::mem::take(&mut self.mail);
        let mut room = true;
        for delivery in mail.iter().skip(self.sent) {
            room = self.send(delivery, now);
            if !room || self.outbox.len() >= OUTBOX_MAX {
                self.sent += usize::from(room);
                break;
            }
            self.sent += 1;
        }
        self.mail = mail;
        if self.sent >= self.mail.len() {
            self.mail.clear();
            self.sent = 0;
        }
        room
    }

    /// Sends one delivery. `false` where the client's window is full.
    pub(super) fn send(&mut self, delivery: &Delivery, now: Timestamp) -> bool {
        let Some(client) = &mut self.owner.client else { return true };
        if !self.broker.is_current(client, delivery.source) {
            return true;
        }
        let turn = &mut self.turn;
        match client.session.deliver(delivery, now, &mut self.outbox) {
            Delivered::Sent => self.broker.sent(client, turn, delivery),
            Delivered::Known => {}
            Delivered::Full => return false,
            Delivered::Lost | Delivered::TooLarge if is_of_broker(&delivery.message.topic) => {}
            Delivered::Lost => self.broker.give_up(client, turn, delivery.source, DropReason::NotPersistent, now),
            Delivered::Expired => self.broker.give_up(client, turn, delivery.source, DropReason::Expired, now),
            Delivered::TooLarge => self.broker.give_up(client, turn, delivery.source, DropReason::TooLarge, now),
            Delivered::Record { packet_id } => {
                self.broker.record_packet_id(client, turn, delivery.source, packet_id);
            }
        }
        true
    }

    /// Drops the oldest messages of the session's log that were never sent, until it is within its limits. What no log holds, or a
    /// group has leased, stays.
    fn drop_oldest(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Result<(), Ended> {
        let Some(client) = &mut self.owner.client else { return Ok(()) };
        // What is settled already counts no more.
        self.broker.dispatch(client, &mut self.turn, now);
        client.receiver.has_looked(u64::MAX);
        let mut excess = client.receiver.excess();
        while excess != (0, 0) {
            let Some(client) = &mut self.owner.client else { return Ok(()) };
            let oldest = self.mail.iter().skip(self.sent).position(|delivery| client.was_never_sent(delivery));
            if let Some(delivery) = oldest.and_then(|at| self.mail.remove(self.sent + at)) {
                self.broker.drop_for_excess(client, &mut self.turn, &delivery, &mut excess, now);
                continue;
            }
            if self.sent < self.mail.len() || (!self.take_mail() && !self.read_log(cx)?) {
                break;
            }
        }
        // What stays here hides what waits behind it: that is looked at once this is sent.
        let more = self.sent < self.mail.len() || !matches!(self.reader, Reader::Closed);
        self.overfull = excess != (0, 0) && more;
        let Some(client) = &mut self.owner.client else { return Ok(()) };
        self.broker.dispatch(client, &mut self.turn, now);
        Ok(())
    }

    /// Takes the mailbox, where all mail is sent. `false` where it was empty.
    fn take_mail(&mut self) -> bool {
        let Some(client) = &mut self.owner.client else { return false };
        // Where what followed was dropped, what is sent still stands here: it must not go round.
        self.mail.clear();
        self.sent = 0;
        // What is empty here becomes the mailbox: the memory goes round.
        let behind = client.receiver.take(&mut self.mail);
        if behind && matches!(self.reader, Reader::Closed) {
            self.reader = Reader::Page { read: client.session.log().head() };
        }
        if self.mail.is_empty() {
            return false;
        }
        self.handled += self.mail.len();
        if self.judging {
            self.judge();
        }
        true
    }

    /// New rules hold for what waits here already, and for what publishers put for a while: their turn may have begun under the old ones.
    fn follow_rules(&mut self, now: Timestamp) {
        let rules = self.broker.auth.generation();
        if rules != self.rules {
            self.rules = rules;
            self.judging = true;
            self.rules_since = now;
            self.judge();
        } else if self.judging && now.millis_since(self.rules_since) > JUDGING_MILLIS {
            self.judging = false;
        }
    }

    /// Drops what the client may not receive any more of what is not sent yet.
    fn judge(&mut self) {
        let Some(client) = &mut self.owner.client else { return };
        let mail = std::mem::take(&mut self.mail);
        for delivery in mail.into_iter().skip(std::mem::take(&mut self.sent)) {
            keep_if_allowed(&self.broker, client, &mut self.turn, &mut self.mail, delivery);
        }
        self.told.retain(|(_, delivery)| self.broker.may_receive(client, &delivery.message.topic));
    }

    /// Reads on in the session's log. `true` where something came.
    fn read_log(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let Some(client) = &mut self.owner.client else { return Ok(false) };
        loop {
            match &mut self.reader {
                Reader::Closed => return Ok(false),
                Reader::Page { read } => {
                    let waits = client.session.room() == 0 || !self.outbox.is_empty() && self.broker.pages_are_scarce();
                    if waits && !self.overfull {
                        return Ok(false);
                    }
                    // What the session knows is not read again, however often the mailbox falls behind.
                    let read = client.session.next_unknown(*read + 1) - 1;
                    self.reader = match client.receiver.catch_up(read) {
                        None => Reader::Closed,
                        Some((tail, commit)) => Reader::Waiting { read, tail, commit },
                    };
                }
                Reader::Waiting { read, tail, commit } => {
                    let (read, tail) = (*read, *tail);
                    match self.broker.when_committed(*commit, cx.waker()) {
                        Commit::Pending => return Ok(false),
                        Commit::Failed if self.broker.store_failed() => return Err(Ended::StoreFailed),
                        // What failed before the store was mended is not in the log.
                        Commit::Failed | Commit::Done => {}
                    }
                    let page = self.broker.read_log_page(client.session.id, read + 1);
                    self.reader = Reader::Reading { read, tail, page };
                }
                Reader::Reading { read, tail, page } => {
                    let Poll::Ready(page) = Pin::new(page).poll(cx) else { return Ok(false) };
                    let (read, tail) = (*read, *tail);
                    let LogPage { deliveries: entries, held } = page
                        .map_err(|error| Ended::LogUnreadable(error.to_string()))?
                        .map_err(|error| Ended::LogUnreadable(error.to_string()))?;
                    self.holds = Some(held.and(self.holds.take()));
                    // Only an empty page says that nothing is left up to the tail.
                    let end = entries.last().map_or(tail, Delivery::seq);
                    self.page_came(read, end, entries);
                    self.reader = Reader::Page { read: end };
                    if !self.mail.is_empty() {
                        return Ok(true);
                    }
                    return self.read_log(cx);
                }
            }
        }
    }

    /// Puts a page in the mail. What the log has no entry for is settled: it was trimmed, or given up.
    fn page_came(&mut self, read: u64, end: u64, entries: Vec<Delivery>) {
        let Some(client) = &mut self.owner.client else { return };
        let mut next = read + 1;
        for delivery in entries {
            client.session.log().settle_up_to(next, delivery.seq());
            next = delivery.seq() + 1;
            keep_if_allowed(&self.broker, client, &mut self.turn, &mut self.mail, delivery);
        }
        client.session.log().settle_up_to(next, end + 1);
    }
}

fn keep_if_allowed(
    broker: &Broker,
    client: &mut Client,
    turn: &mut Turn,
    mail: &mut VecDeque<Delivery>,
    delivery: Delivery,
) {
    if client.session.knows(delivery.source) {
        return;
    }
    // What PUBREC was received for is no more than a packet id: PUBREL must follow.
    let released = match delivery.source {
        Source::Log { seq, .. } => client.session.log().open(seq).is_some_and(|open| open.released),
        _ => false,
    };
    if released || broker.may_receive(client, &delivery.message.topic) {
        mail.push_back(delivery);
    } else if !is_of_broker(&delivery.message.topic) {
        broker.withdraw(client, turn, delivery.source, clock::now());
    }
}

/// How long after a change of the rules a message may still come that was routed under the old ones.
const JUDGING_MILLIS: u64 = 10_000;
