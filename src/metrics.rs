//! What is counted: every counter and gauge is declared once, in the table at the end of this file.
//!
//! A connection counts into its own [`Counts`] (plain integers) and adds them to the shared [`Metrics`] once per turn.
//! Must know no other room: what is counted is decided by those who count.

mod histogram;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

pub use histogram::{Histogram, Summary};

/// A value that goes up and down. Never reads below zero, though updates from several threads may cross.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// One more. The value then.
    pub fn increment(&self) -> u64 {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        u64::try_from(before.saturating_add(1)).unwrap_or(0)
    }

    /// One less.
    pub fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Exactly `value`.
    pub fn set(&self, value: u64) {
        self.0.store(i64::try_from(value).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// At least `value`.
    pub fn raise(&self, value: u64) {
        self.0.fetch_max(i64::try_from(value).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        u64::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(0)
    }
}

/// Whether a metric only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Grows from zero at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One metric at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The name, in `snake_case`; units last, and behind them what a histogram tells.
    pub name: &'static str,
    /// What it means, in one sentence.
    pub meaning: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// The value.
    pub value: u64,
}

/// How the counters of [`DropReason`] begin.
pub const DROPPED: &str = "dropped_";

macro_rules! metrics {
    (
        counters { $($(#[doc = $counter_doc:literal])+ $counter:ident,)+ }
        drops { $($(#[doc = $drop_doc:literal])+ $reason:ident => $dropped:ident,)+ }
        limits { $($(#[doc = $limit_doc:literal])+ $limit:ident => $limited:ident,)+ }
        gauges { $($(#[doc = $gauge_doc:literal])+ $gauge:ident,)+ }
        histograms { $($(#[doc = $histogram_doc:literal])+ $histogram:ident,)+ }
    ) => {
        /// What one connection (or task) has counted since it last called [`Metrics::add`].
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[doc = $counter_doc])+ pub $counter: u64,)+
            $($(#[doc = $drop_doc])+ pub $dropped: u64,)+
            $($(#[doc = $limit_doc])+ pub $limited: u64,)+
        }

        impl Counts {
            /// Counts one message that was not delivered, by its reason.
            pub fn dropped(&mut self, reason: DropReason) {
                self.drop_all(reason, 1);
            }

            /// Counts `count` of them.
            pub fn drop_all(&mut self, reason: DropReason, count: u64) {
                match reason {
                    $(DropReason::$reason => self.$dropped += count,)+
                }
            }

            /// Counts that a client reached a limit.
            pub fn limited(&mut self, limit: Limit) {
                match limit {
                    $(Limit::$limit => self.$limited += 1,)+
                }
            }
        }

        /// A limit that a client can reach.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Limit {
            $($(#[doc = $limit_doc])+ $limit,)+
        }

        impl Limit {
            /// Every limit, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$limit,)+];

            /// The name of its counter, for example `limited_sessions`.
            #[must_use]
            pub fn counter(self) -> &'static str {
                match self {
                    $(Self::$limit => stringify!($limited),)+
                }
            }
        }

        /// Why a message was not delivered to one receiver, or not accepted from its publisher.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[doc = $drop_doc])+ $reason,)+
        }

        impl DropReason {
            /// Every reason, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$reason,)+];

            /// The name of its counter, for example `dropped_queue_full`.
            #[must_use]
            pub fn counter(self) -> &'static str {
                match self {
                    $(Self::$reason => stringify!($dropped),)+
                }
            }

            /// Its name, for example `queue_full`.
            #[must_use]
            pub fn name(self) -> &'static str {
                self.counter().trim_start_matches(DROPPED)
            }
        }

        /// The counters and gauges of the whole process.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($counter: AtomicU64,)+
            $($dropped: AtomicU64,)+
            $($limited: AtomicU64,)+
            $($(#[doc = $gauge_doc])+ pub $gauge: Gauge,)+
            $($(#[doc = $histogram_doc])+ pub $histogram: Histogram,)+
        }

        impl Metrics {
            /// Adds what was counted and sets `counts` back to zero. To be called once per turn, not per message.
            pub fn add(&self, counts: &mut Counts) {
                $(add(&self.$counter, &mut counts.$counter);)+
                $(add(&self.$dropped, &mut counts.$dropped);)+
                $(add(&self.$limited, &mut counts.$limited);)+
            }

            /// Counts one client that reached a limit, where no [`Counts`] are at hand.
            pub fn limited(&self, limit: Limit) {
                match limit {
                    $(Limit::$limit => self.$limited.fetch_add(1, Ordering::Relaxed),)+
                };
            }

            /// Every metric with its value now, in the order of their declaration.
            pub fn snapshot(&self) -> impl Iterator<Item = Sample> {
                let counters = [
                    $((stringify!($counter), concat!($($counter_doc),+), &self.$counter),)+
                    $((stringify!($dropped), concat!($($drop_doc),+), &self.$dropped),)+
                    $((stringify!($limited), concat!($($limit_doc),+), &self.$limited),)+
                ];
                let gauges = [$((stringify!($gauge), concat!($($gauge_doc),+), &self.$gauge),)+];
                let counters = counters.into_iter().map(|(name, meaning, value)| Sample {
                    name,
                    meaning: meaning.trim_start(),
                    kind: Kind::Counter,
                    value: value.load(Ordering::Relaxed),
                });
                let gauges = gauges.into_iter().map(|(name, meaning, value)| Sample {
                    name,
                    meaning: meaning.trim_start(),
                    kind: Kind::Gauge,
                    value: value.get(),
                });
                let histograms = [$(spread(
                    concat!($($histogram_doc),+),
                    [
                        concat!(stringify!($histogram), "_count"),
                        concat!(stringify!($histogram), "_sum"),
                        concat!(stringify!($histogram), "_p50"),
                        concat!(stringify!($histogram), "_p99"),
                        concat!(stringify!($histogram), "_max"),
                    ],
                    self.$histogram.summary(),
                ),)+];
                counters.chain(gauges).chain(histograms.into_iter().flatten())
            }
        }
    };
}

fn add(total: &AtomicU64, count: &mut u64) {
    if *count != 0 {
        total.fetch_add(*count, Ordering::Relaxed);
        *count = 0;
    }
}

/// The samples of a histogram: how often and how much in all, and the quantiles and the maximum of the last minute or two.
fn spread(meaning: &'static str, names: [&'static str; 5], summary: Summary) -> impl Iterator<Item = Sample> {
    let Summary { count, sum, p50, p99, max } = summary;
    let kinds = [Kind::Counter, Kind::Counter, Kind::Gauge, Kind::Gauge, Kind::Gauge];
    let samples = names.into_iter().zip(kinds).zip([count, sum, p50, p99, max]);
    samples.map(move |((name, kind), value)| Sample { name, meaning: meaning.trim_start(), kind, value })
}

metrics! {
    counters {
        /// Network connections that were accepted by a listener.
        connections_accepted,
        /// Network connections that were closed at once, or whose CONNECT was refused.
        connections_refused,
        /// CONNECT packets that could be read.
        connects_received,
        /// Packets of every type received from clients.
        packets_received,
        /// Packets of every type sent to clients.
        packets_sent,
        /// PUBLISH packets received from clients, before any check.
        messages_received,
        /// PUBLISH packets sent to clients, repeats included.
        messages_delivered,
        /// Bytes of the payloads in PUBLISH packets received from clients.
        payload_bytes_received,
        /// Bytes of the payloads in PUBLISH packets sent to clients.
        payload_bytes_sent,
        /// Messages written to the log of a session or a shared group for later delivery.
        messages_queued,
        /// Bytes received from clients, after TLS.
        bytes_received,
        /// Bytes sent to clients, before TLS.
        bytes_sent,
        /// PUBLISH packets and wills that the ACL refused.
        publishes_denied,
        /// Topic filters in SUBSCRIBE packets that the ACL refused.
        subscriptions_denied,
        /// CONNECT packets refused for a wrong or missing user name, password or certificate.
        logins_failed,
        /// Sessions that ended since their Session Expiry Interval had passed.
        sessions_expired,
        /// Times that a shared subscription stood still, since more waited for members that are full or away than it looks past.
        shared_stalls,
    }
    drops {
        /// Messages dropped since the queue of their receiver was full.
        QueueFull => dropped_queue_full,
        /// Messages dropped since the queues of all receivers together were full.
        AllQueuesFull => dropped_all_queues_full,
        /// Messages dropped since their Message Expiry Interval had passed.
        Expired => dropped_expired,
        /// Messages dropped since the ACL does not allow them.
        AclDenied => dropped_acl_denied,
        /// Messages dropped since they exceed the Maximum Packet Size of their receiver.
        TooLarge => dropped_too_large,
        /// Messages dropped since their receiver was offline and they are not kept (QoS 0, or a session without a log).
        NotPersistent => dropped_not_persistent,
        /// Messages dropped since the session that they waited for has ended.
        SessionEnded => dropped_session_ended,
        /// Messages dropped since the store could not write or read them.
        StorageFailed => dropped_storage_failed,
        /// Messages refused, or not retained, since as much as is allowed is retained.
        RetainedFull => dropped_retained_full,
        /// Messages not accepted since their payload is not the UTF-8 that it claims to be.
        PayloadFormat => dropped_payload_format,
        /// Messages that their receiver refused, by a PUBACK or PUBREC with a failure.
        Refused => dropped_refused,
    }
    limits {
        /// Connections closed at once since as many as are allowed were open, in all or through their listener.
        Connections => limited_connections,
        /// Connections closed at once since as many as are allowed were open from their address.
        ConnectionsOfAddress => limited_connections_of_address,
        /// Connections closed at once since too many came within a second, in all or from their address.
        ConnectionRate => limited_connection_rate,
        /// Connections closed since their CONNECT was not complete in time.
        ConnectTimeout => limited_connect_timeout,
        /// CONNECT packets whose Keep Alive was replaced by a shorter one.
        KeepAlive => limited_keep_alive,
        /// CONNECT packets refused since as many sessions as are allowed were there.
        Sessions => limited_sessions,
        /// CONNECT packets refused for the size of their Will.
        WillSize => limited_will_size,
        /// Take-overs that had to wait since their client id changed hands too often.
        Takeovers => limited_takeovers,
        /// Connections closed since a packet was larger than what is allowed.
        PacketSize => limited_packet_size,
        /// Topics and filters refused for their length or their levels.
        Topics => limited_topics,
        /// Connections closed since one packet held more filters than are allowed.
        FiltersPerPacket => limited_filters_per_packet,
        /// Filters refused since their session had as many subscriptions as are allowed.
        Subscriptions => limited_subscriptions,
        /// CONNECT packets refused, and connections closed, for the User Properties of one packet.
        UserProperties => limited_user_properties,
        /// Connections closed since more publications were in flight than the Receive Maximum allows.
        InFlight => limited_in_flight,
        /// Times that reading from a client paused since it published faster than is allowed.
        PublishRate => limited_publish_rate,
    }
    gauges {
        /// Network connections that are open, with or without a CONNECT.
        connections_open,
        /// Clients that are connected.
        clients_connected,
        /// The most clients that were connected at the same time.
        clients_connected_maximum,
        /// Sessions, connected or not.
        sessions,
        /// Subscriptions of all sessions, without the shared ones.
        subscriptions,
        /// Shared Subscriptions of all sessions.
        shared_subscriptions,
        /// Bytes that wait in the queues of all sessions and shared groups, in memory and stored; small queues are left out.
        queued_bytes,
        /// Retained messages.
        retained_messages,
        /// Bytes that the retained messages take in memory, roughly.
        retained_bytes,
    }
    histograms {
        /// Time from the first change in a commit that somebody waits for until those who wait are told, in microseconds.
        commit_wait_micros,
        /// Changes that are written in one commit.
        commit_operations,
        /// Bytes that are written in one commit, roughly.
        commit_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metrics: &Metrics, name: &str) -> u64 {
        let found: Vec<Sample> = metrics.snapshot().filter(|sample| sample.name == name).collect();
        assert_eq!(found.len(), 1, "{name} is declared once");
        found[0].value
    }

    #[test]
    fn counts_are_added_once_and_start_again_from_zero() {
        let metrics = Metrics::default();
        let mut counts = Counts { messages_received: 3, ..Counts::default() };
        counts.dropped(DropReason::Expired);
        metrics.add(&mut counts);
        assert_eq!(counts, Counts::default());
        metrics.add(&mut counts);
        assert_eq!(value(&metrics, "messages_received"), 3);
        assert_eq!(value(&metrics, "dropped_expired"), 1);
        assert_eq!(value(&metrics, "dropped_queue_full"), 0);
    }

    #[test]
    fn every_drop_reason_has_its_counter() {
        for reason in DropReason::ALL {
            let metrics = Metrics::default();
            let mut counts = Counts::default();
            counts.dropped(*reason);
            metrics.add(&mut counts);
            assert_eq!(value(&metrics, reason.counter()), 1);
            assert_eq!(reason.counter(), format!("dropped_{}", reason.name()));
            assert_eq!(metrics.snapshot().map(|sample| sample.value).sum::<u64>(), 1);
        }
    }

    #[test]
    fn every_limit_has_its_counter() {
        for limit in Limit::ALL {
            let metrics = Metrics::default();
            let mut counts = Counts::default();
            counts.limited(*limit);
            metrics.add(&mut counts);
            metrics.limited(*limit);
            assert_eq!(value(&metrics, limit.counter()), 2);
            assert_eq!(metrics.snapshot().map(|sample| sample.value).sum::<u64>(), 2);
        }
    }

    #[test]
    fn a_gauge_never_reads_below_zero() {
        let metrics = Metrics::default();
        metrics.sessions.decrement();
        assert_eq!(value(&metrics, "sessions"), 0);
        assert_eq!(metrics.sessions.increment(), 0);
        metrics.sessions.increment();
        assert_eq!(value(&metrics, "sessions"), 1);
        metrics.sessions.set(7);
        assert_eq!(value(&metrics, "sessions"), 7);
        metrics.sessions.raise(5);
        assert_eq!(value(&metrics, "sessions"), 7);
        metrics.sessions.raise(9);
        assert_eq!((value(&metrics, "sessions"), metrics.sessions.increment()), (9, 10));
    }

    #[test]
    fn a_histogram_has_five_samples() {
        let metrics = Metrics::default();
        (1..=3).for_each(|size| metrics.commit_operations.record(size));
        let names = ["count", "sum", "p50", "p99", "max"].map(|what| format!("commit_operations_{what}"));
        assert_eq!(names.map(|name| value(&metrics, &name)), [3, 6, 2, 3, 3]);
    }

    #[test]
    fn each_metric_has_a_name_of_its_own_and_a_meaning() {
        let metrics = Metrics::default();
        let mut names: Vec<&str> = metrics.snapshot().map(|sample| sample.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for sample in metrics.snapshot() {
            assert!(sample.meaning.ends_with('.') && !sample.meaning.starts_with(' '), "{sample:?}");
        }
        let kind = |name: &str| metrics.snapshot().find(|sample| sample.name == name).map(|sample| sample.kind);
        assert_eq!(kind("messages_received"), Some(Kind::Counter));
        assert_eq!(kind("sessions"), Some(Kind::Gauge));
    }
}
