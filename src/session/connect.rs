//! What a CONNECT asks for and what the limits allow: the terms of a connection. Must not know who the client is.

use crate::mqtt::{
    QoS, ReasonCode, Version,
    packet::{ConnAckProperties, Connect, Publish, Will},
};

use super::{Limits, Violation, packet_limits::PacketLimits};

/// The terms under which a connection runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Protocol version.
    pub version: Version,
    /// Keep Alive in force, in seconds; 0 is none.
    pub keep_alive_secs: u16,
    /// Session Expiry Interval in force, in seconds.
    pub session_expiry_secs: u32,
    /// How many QoS 1 and 2 deliveries may be in flight towards the client.
    pub send_maximum: u16,
    /// How many QoS 1 and 2 PUBLISHes the client may have in flight.
    pub receive_maximum: u16,
    /// Largest packet that the client takes, in bytes.
    pub maximum_packet_size: u32,
    /// How many topic aliases the client may set.
    pub topic_alias_maximum: u16,
    /// How many topic aliases the client may be sent [MQTT-3.1.2-26], [MQTT-3.1.2-27].
    pub client_topic_alias_maximum: u16,
    /// The highest QoS that the client may publish with.
    pub maximum_qos: QoS,
    /// Whether the client may set RETAIN.
    pub retain_available: bool,
    /// What one packet may hold.
    pub packet: PacketLimits,
    /// The most messages and bytes that the client may publish in a second; 0: no limit.
    pub publish_rate: (u32, u32),
    /// Whether Reason Strings and User Properties may be sent [MQTT-3.1.2-29].
    pub problem_information: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            version: Version::V3_1_1,
            keep_alive_secs: 0,
            session_expiry_secs: 0,
            send_maximum: u16::MAX,
            receive_maximum: u16::MAX,
            maximum_packet_size: u32::MAX,
            topic_alias_maximum: 0,
            client_topic_alias_maximum: 0,
            maximum_qos: QoS::ExactlyOnce,
            retain_available: true,
            packet: PacketLimits::default(),
            publish_rate: (0, 0),
            problem_information: true,
        }
    }
}

impl Terms {
    /// What `limits` allow of what `connect` asks for.
    #[must_use]
    pub fn negotiate(connect: &Connect, limits: &Limits) -> Self {
        let keep_alive_secs = match (limits.max_keep_alive_secs, connect.keep_alive_secs) {
            (0, asked) => asked,
            (most, 0) => most,
            (most, asked) => asked.min(most),
        };
        Self {
            version: connect.version,
            keep_alive_secs,
            session_expiry_secs: connect.session_expiry_secs.min(limits.max_session_expiry_secs),
            send_maximum: connect.receive_maximum.get().min(limits.max_inflight_messages.get()),
            receive_maximum: limits.receive_maximum.get(),
            maximum_packet_size: connect.maximum_packet_size,
            topic_alias_maximum: if connect.version.is_v5() { limits.topic_alias_maximum } else { 0 },
            client_topic_alias_maximum: connect.topic_alias_maximum.min(limits.client_topic_alias_maximum),
            maximum_qos: limits.maximum_qos,
            retain_available: limits.retain_available,
            packet: PacketLimits::from(limits),
            publish_rate: (limits.max_publish_messages_per_sec, limits.max_publish_bytes_per_sec),
            problem_information: connect.request_problem_information,
        }
    }

    /// Whether the client may publish this.
    ///
    /// # Errors
    /// What CONNACK said that it must not do.
    pub(super) fn check_publish(&self, publish: &Publish<'_>) -> Result<(), Violation> {
        if publish.qos as u8 > self.maximum_qos as u8 {
            return Err(Violation::QoSNotSupported(self.maximum_qos as u8));
        }
        if publish.retain && !self.retain_available {
            return Err(Violation::RetainNotSupported);
        }
        Ok(())
    }

    /// The properties of the CONNACK that tells them (3.2.2.3): what differs from what the client asked for, or from the
    /// specification's defaults.
    #[must_use]
    pub fn connack(&self, connect: &Connect, limits: &Limits, assigned_client_id: Option<String>) -> ConnAckProperties {
        ConnAckProperties {
            session_expiry_secs: (self.session_expiry_secs != connect.session_expiry_secs)
                .then_some(self.session_expiry_secs),
            receive_maximum: (self.receive_maximum != u16::MAX).then_some(self.receive_maximum),
            maximum_qos: Some(self.maximum_qos as u8),
            retain_available: unavailable(self.retain_available),
            wildcard_available: unavailable(limits.wildcard_subscriptions_available),
            subscription_ids_available: unavailable(limits.subscription_identifiers_available),
            shared_available: unavailable(limits.shared_subscriptions_available),
            maximum_packet_size: Some(limits.max_packet_size_bytes.get()),
            assigned_client_id,
            topic_alias_maximum: (self.topic_alias_maximum > 0).then_some(self.topic_alias_maximum),
            server_keep_alive: (self.keep_alive_secs != connect.keep_alive_secs).then_some(self.keep_alive_secs),
            ..ConnAckProperties::default()
        }
    }
}

/// A capability is told where it is missing: to have it is the default (3.2.2.3).
fn unavailable(available: bool) -> Option<bool> {
    (!available).then_some(false)
}

/// Why a Will cannot be accepted: it asks for more than the broker offers.
#[must_use]
pub fn refuse_will(will: &Will, terms: &Terms, limits: &Limits) -> Option<(ReasonCode, &'static str)> {
    // [MQTT-3.2.2-12]
    if will.qos as u8 > terms.maximum_qos as u8 {
        return Some((ReasonCode::QoSNotSupported, "the will's QoS is above the Maximum QoS"));
    }
    // [MQTT-3.2.2-13]
    if will.retain && !terms.retain_available {
        return Some((
            ReasonCode::RetainNotSupported,
            "the will is to be retained, and retained messages are not available",
        ));
    }
    if limits.check_payload_format && will.payload_is_utf8() && std::str::from_utf8(&will.payload).is_err() {
        return Some((ReasonCode::PayloadFormatInvalid, "the will's payload is not the UTF-8 that it claims to be"));
    }
    None
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU16, NonZeroU32};

    use super::*;

    fn connect(version: Version) -> Connect {
        Connect {
            version,
            clean_start: true,
            keep_alive_secs: 0,
            client_id: "c".into(),
            will: None,
            username: None,
            password: None,
            session_expiry_secs: 0,
            receive_maximum: NonZeroU16::MAX,
            maximum_packet_size: u32::MAX,
            topic_alias_maximum: 0,
            request_response_information: false,
            request_problem_information: true,
            authentication_method: None,
            authentication_data: None,
        }
    }

    fn nonzero(value: u16) -> NonZeroU16 {
        NonZeroU16::new(value).expect("not zero")
    }

    /// [MQTT-3.1.2-21], [MQTT-3.2.2-21], [MQTT-3.2.2-22], cases D08, D09: what binds, and what CONNACK says of it.
    #[test]
    fn keep_alive() {
        for (most, asked, binds, said) in [
            (0, 0, 0, None),
            (0, u16::MAX, u16::MAX, None),
            (60, 120, 60, Some(60)),
            (60, 60, 60, None),
            (60, 59, 59, None),
            (60, 0, 60, Some(60)),
        ] {
            for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
                let limits = Limits { max_keep_alive_secs: most, ..Limits::default() };
                let connect = Connect { keep_alive_secs: asked, ..connect(version) };
                let terms = Terms::negotiate(&connect, &limits);
                assert_eq!(terms.keep_alive_secs, binds, "{most} {asked}");
                assert_eq!(terms.connack(&connect, &limits, None).server_keep_alive, said, "{most} {asked}");
            }
        }
    }

    /// Case D39: a shortened Session Expiry Interval is told (3.2.2.3.2).
    #[test]
    fn session_expiry() {
        for (most, asked, binds, said) in [
            (u32::MAX, 0, 0, None),
            (u32::MAX, u32::MAX, u32::MAX, None),
            (60, u32::MAX, 60, Some(60)),
            (60, 60, 60, None),
            (0, 5, 0, Some(0)),
        ] {
            let limits = Limits { max_session_expiry_secs: most, ..Limits::default() };
            let connect = Connect { session_expiry_secs: asked, ..connect(Version::V5) };
            let terms = Terms::negotiate(&connect, &limits);
            assert_eq!(terms.session_expiry_secs, binds);
            assert_eq!(terms.connack(&connect, &limits, None).session_expiry_secs, said);
        }
    }

    /// [MQTT-3.3.4-9], [MQTT-3.1.2-24], [MQTT-3.1.2-26], [MQTT-3.1.2-27], [MQTT-3.2.2-15], [MQTT-3.2.2-17].
    #[test]
    fn limits_of_both_sides() {
        let limits = Limits {
            max_inflight_messages: nonzero(20),
            receive_maximum: nonzero(30),
            topic_alias_maximum: 5,
            client_topic_alias_maximum: 7,
            max_packet_size_bytes: NonZeroU32::new(5000).expect("not zero"),
            ..Limits::default()
        };
        for (version, receive_maximum, send_maximum, aliases) in [
            (Version::V5, 10, 10, 5),
            (Version::V5, 20, 20, 5),
            (Version::V5, u16::MAX, 20, 5),
            (Version::V3_1_1, u16::MAX, 20, 0),
        ] {
            let connect = Connect {
                receive_maximum: nonzero(receive_maximum),
                maximum_packet_size: 900,
                request_problem_information: false,
                ..connect(version)
            };
            let terms = Terms::negotiate(&connect, &limits);
            assert_eq!((terms.version, terms.send_maximum, terms.receive_maximum), (version, send_maximum, 30));
            assert_eq!((terms.topic_alias_maximum, terms.maximum_packet_size), (aliases, 900));
            assert!(!terms.problem_information);
        }
        for (asked, given) in [(0, 0), (6, 6), (8, 7), (u16::MAX, 7)] {
            let connect = Connect { topic_alias_maximum: asked, ..connect(Version::V5) };
            assert_eq!(Terms::negotiate(&connect, &limits).client_topic_alias_maximum, given);
        }
        let connack = Terms::negotiate(&connect(Version::V5), &limits).connack(
            &connect(Version::V5),
            &limits,
            Some("assigned".into()),
        );
        assert_eq!(connack.receive_maximum, Some(30));
        assert_eq!(connack.maximum_packet_size, Some(5000));
        assert_eq!(connack.topic_alias_maximum, Some(5));
        assert_eq!(connack.assigned_client_id.as_deref(), Some("assigned"));
        let wide = Limits { receive_maximum: NonZeroU16::MAX, topic_alias_maximum: 0, ..Limits::default() };
        let connack = Terms::negotiate(&connect(Version::V5), &wide).connack(&connect(Version::V5), &wide, None);
        assert_eq!((connack.receive_maximum, connack.topic_alias_maximum), (None, None));
    }
}
