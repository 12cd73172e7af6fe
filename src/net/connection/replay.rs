//! Retained messages for new subscriptions: a page at a time, as there is room, so that neither memory nor other connections pay for how many
//! there are.
//!
//! Must not know which messages these are (the broker).

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{task::JoinHandle, time::Sleep};

use super::{Connection, OUTBOX_MAX};
use crate::{
    broker::{LogError, Page, PageIs},
    mqtt::Timestamp,
};

/// Where the present page is.
#[derive(Debug, Default)]
pub(super) enum Replaying {
    /// There is none.
    #[default]
    Nothing,
    /// It waits for room.
    Page(Page),
    /// It is being read.
    Reading(JoinHandle<Result<Page, LogError>>),
    /// It could not be read: it begins anew then.
    Failed(Pin<Box<Sleep>>),
}

impl Connection {
    /// Sends on from the present page, or begins one. `true` where it went on.
    pub(super) fn replay(&mut self, cx: &mut Context<'_>, now: Timestamp) -> bool {
        let Some(client) = &self.owner.client else { return false };
        if self.outbox.len() >= OUTBOX_MAX || !client.can_replay() {
            return false;
        }
        while let Some(mut page) = self.next_page(cx, now)
            && let Some(client) = &self.owner.client
        {
            match self.broker.check_page(client, &mut self.turn, &mut page, now) {
                PageIs::Stale => return true,
                PageIs::Unread => self.read_page(page),
                PageIs::Ready => return self.send_page(page, now),
            }
        }
        false
    }

    fn next_page(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Option<Page> {
        let client = self.owner.client.as_ref()?;
        match std::mem::take(&mut self.replaying) {
            Replaying::Nothing => self.broker.replay_page(client, now),
            Replaying::Page(page) => Some(page),
            Replaying::Reading(mut reading) => match Pin::new(&mut reading).poll(cx) {
                Poll::Pending => {
                    self.replaying = Replaying::Reading(reading);
                    None
                }
                Poll::Ready(Ok(Ok(page))) => Some(page),
                Poll::Ready(read) => {
                    let error = read.map_or_else(
                        |error| error.to_string(),
                        |read| read.err().map_or_else(String::new, |error| error.to_string()),
                    );
                    tracing::error!(%error, "retained messages cannot be read; it is tried again");
                    self.replaying = Replaying::Failed(Box::pin(tokio::time::sleep(AGAIN_AFTER)));
                    self.next_page(cx, now)
                }
            },
            Replaying::Failed(mut again) => match again.as_mut().poll(cx) {
                Poll::Pending => {
                    self.replaying = Replaying::Failed(again);
                    None
                }
                Poll::Ready(()) => self.broker.replay_page(client, now),
            },
        }
    }

    /// Off the threads that serve connections.
    fn read_page(&mut self, mut page: Page) {
        let broker = self.broker.clone();
        let read = move || broker.read_page(&mut page).map(|()| page);
        self.replaying = Replaying::Reading(tokio::task::spawn_blocking(read));
    }

    /// Sends what there is room for.
    fn send_page(&mut self, mut page: Page, now: Timestamp) -> bool {
        let Some(client) = &mut self.owner.client else { return false };
        let before = page.left();
        if client.session.logged {
            for delivery in self.broker.log_page(client, &mut self.turn, &mut page, now) {
                self.send(&delivery, now);
            }
        } else {
            self.send_direct(&mut page, now);
        }
        let moved = page.left() < before || before == 0;
        if page.left() > 0 {
            self.replaying = Replaying::Page(page);
        }
        moved
    }

    fn send_direct(&mut self, page: &mut Page, now: Timestamp) {
        while self.outbox.len() < OUTBOX_MAX
            && let Some(delivery) = page.front()
            && self.send(&delivery, now)
        {
            page.pop();
        }
        if let Some(client) = &mut self.owner.client {
            client.move_replay(page);
        }
    }
}

/// How long after a failure it is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
