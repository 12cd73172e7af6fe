//! Retained messages for new subscriptions: a page at a time, as there is room, so that neither memory nor other connections pay for how many
//! there are.
//!
//! Must not know which messages these are (the broker).

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Sleep;

use super::{Connection, OUTBOX_MAX};
use crate::{
    broker::{Page, PageIs, Reading},
    mqtt::Timestamp,
};

/// Where the present page is. It is begun when there is room, and as large as that.
#[derive(Debug, Default)]
pub(super) enum Replaying {
    /// There is none.
    #[default]
    Nothing,
    /// What is left of it waits for room, which something else took.
    Page(Page),
    /// It is being read.
    Reading(Reading<Page>),
    /// It could not be read: it begins anew then.
    Failed(Pin<Box<Sleep>>),
}

impl Connection {
    /// Sends the next page, as far as it is here. `true` where it went on.
    pub(super) fn replay(&mut self, cx: &mut Context<'_>, now: Timestamp) -> bool {
        let Some(client) = &self.owner.client else { return false };
        if self.outbox.len() >= OUTBOX_MAX || client.replay_room().is_none() {
            return false;
        }
        if client.session.logged && !self.broker.has_room(cx.waker()) {
            return false;
        }
        while let Some(mut page) = self.next_page(cx, now)
            && let Some(client) = &mut self.owner.client
        {
            match self.broker.check_page(client, &mut self.turn, &mut page, now) {
                PageIs::Stale => return true,
                PageIs::Unread => self.replaying = Replaying::Reading(self.broker.read_page(page)),
                PageIs::Ready => {
                    for delivery in self.broker.take_page(client, &mut self.turn, &mut page, now) {
                        self.send(&delivery, now);
                    }
                    if page.is_left() {
                        self.replaying = Replaying::Page(page);
                    }
                    return true;
                }
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
                Poll::Ready(Ok(Err(error))) => self.try_again(&error, cx, now),
                Poll::Ready(Err(error)) => self.try_again(&error, cx, now),
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

    fn try_again(&mut self, error: &dyn Error, cx: &mut Context<'_>, now: Timestamp) -> Option<Page> {
        tracing::error!(%error, "retained messages cannot be read; it is tried again");
        self.replaying = Replaying::Failed(Box::pin(tokio::time::sleep(AGAIN_AFTER)));
        self.next_page(cx, now)
    }
}

/// How long after a failure it is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
