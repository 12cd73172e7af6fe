//! Bytes of a peer, cut and decoded: never a panic, never a byte beyond the packet; what was decoded encodes to what decodes the same.
//!
//! Must not know what a session makes of a packet.

use std::sync::Arc;

use pinnace::mqtt::{
    Message, Outbox, Packet, Timestamp, TopicName, Version,
    codec::{Sender, decode, encode},
    frame::{Cut, Frame, cut},
    outbox::Outgoing,
    packet::Publish,
};

/// The first byte chooses version, sender and how the rest is read: as it was sent, or as first byte and body of one packet, whose
/// Remaining Length is then right. The second is the largest packet that either side takes, in steps of 8 bytes.
pub fn run(data: &[u8]) {
    let [choice, limit, rest @ ..] = data else { return };
    let version = [Version::V3_1, Version::V3_1_1, Version::V5, Version::V5][usize::from(choice & 3)];
    let from = if choice & 4 == 0 { Sender::Client } else { Sender::Server };
    let limit = if *limit == 0 { u32::MAX } else { u32::from(*limit) * 8 };
    if choice & 8 == 0 {
        stream(rest, version, from, limit);
    } else if let [first, body @ ..] = rest {
        stream(&packet(*first, body), version, from, limit);
    }
}

/// A packet of that first byte and body.
pub(super) fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut len = body.len();
    loop {
        bytes.push((len % 128) as u8 | if len < 128 { 0 } else { 0x80 });
        len /= 128;
        if len == 0 {
            break;
        }
    }
    bytes.extend_from_slice(body);
    bytes
}

fn stream(mut rest: &[u8], version: Version, from: Sender, limit: u32) {
    loop {
        match cut(rest, limit) {
            Err(_) => return,
            Ok(Cut::Partial { needed }) => {
                assert!(needed > rest.len(), "{needed} bytes are needed, and there are {}", rest.len());
                assert!(needed <= 5 || needed <= limit as usize, "waits for more than it takes: {needed}");
                return;
            }
            Ok(Cut::Whole(frame)) => {
                check_frame(rest, frame, limit);
                // What follows a packet has no part in it: a copy without it decodes the same.
                let alone: Box<[u8]> = rest[..frame.len].into();
                let decoded = decode(whole(&alone), version, from);
                assert_eq!(decode(frame, version, from), decoded);
                if let Ok(packet) = decoded {
                    check_encoding(&packet, version, from);
                    check_outbox(&packet, version, limit);
                }
                rest = &rest[frame.len..];
            }
        }
    }
}

fn check_frame(bytes: &[u8], frame: Frame<'_>, limit: u32) {
    assert!(frame.len <= bytes.len() && frame.len <= limit as usize);
    assert_eq!(frame.first, bytes[0]);
    assert!(bytes[..frame.len].ends_with(frame.body) && (2..=5).contains(&(frame.len - frame.body.len())));
    for len in (0..frame.len).take(6).chain(frame.len.saturating_sub(2)..frame.len) {
        match cut(&bytes[..len], limit) {
            Ok(Cut::Partial { needed }) => assert!(needed > len && needed <= frame.len.max(2), "{needed} after {len}"),
            other => panic!("the first {len} bytes of {frame:?}: {other:?}"),
        }
    }
}

fn whole(bytes: &[u8]) -> Frame<'_> {
    match cut(bytes, u32::MAX) {
        Ok(Cut::Whole(frame)) => {
            assert_eq!(frame.len, bytes.len(), "more than a packet");
            frame
        }
        other => panic!("no packet: {other:?} of {bytes:02x?}"),
    }
}

fn check_encoding(packet: &Packet<'_>, version: Version, from: Sender) {
    let mut bytes = vec![0xAA];
    encode(packet, version, &mut bytes).unwrap_or_else(|error| panic!("{error}: {packet:?}"));
    assert_eq!(bytes.remove(0), 0xAA, "what stood there stays");
    let again = decode(whole(&bytes), version, from);
    assert_eq!(again.as_ref(), Ok(packet), "from {bytes:02x?}");
    let mut twice = Vec::new();
    encode(&again.unwrap(), version, &mut twice).unwrap();
    assert_eq!(twice, bytes);
}

/// The peer's maximum holds, and what is left out for its sake leaves a packet.
fn check_outbox(packet: &Packet<'_>, version: Version, limit: u32) {
    let mut outbox = Outbox::new(version);
    outbox.set_maximum_packet_size(limit);
    match packet {
        Packet::Publish(publish) => check_publish(publish, version, outbox),
        Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_) | Packet::Disconnect(_) => {
            for information in [true, false] {
                outbox.request_problem_information(information);
                let sent = outbox.packet(packet).is_ok();
                let bytes = take(&mut outbox);
                assert_eq!(sent, !bytes.is_empty());
                if sent {
                    assert!(bytes.len() <= limit as usize, "{} bytes for a limit of {limit}", bytes.len());
                    let shorter = decode(whole(&bytes), version, Sender::Server);
                    let of_client = decode(whole(&bytes), version, Sender::Client);
                    assert!(shorter.is_ok() || of_client.is_ok(), "{bytes:02x?}");
                }
            }
        }
        _ => {}
    }
}

/// A PUBLISH as it goes on to a subscriber says what came in, with the alias and the expiry that the broker chooses.
fn check_publish(publish: &Publish<'_>, version: Version, mut outbox: Outbox) {
    let Ok(topic) = TopicName::parse(publish.topic) else { return };
    let now = Timestamp(1_000);
    let message = Arc::new(Message {
        topic,
        payload: publish.payload.into(),
        qos: publish.qos,
        retain: publish.retain,
        properties: publish.properties.as_ref().into(),
        expires_at: publish.expiry_secs.map(|secs| now.plus_secs(secs.into())),
        publisher: 1,
    });
    let alias = publish.topic_alias.map(|alias| (alias, alias.get() % 2 == 0));
    let outgoing = Outgoing {
        message: &message,
        qos: publish.qos,
        retain: publish.retain,
        dup: publish.dup,
        packet_id: publish.packet_id,
        subscription_ids: &publish.subscription_ids,
        topic_alias: alias,
        now,
    };
    let takes = outbox.takes(&outgoing);
    assert_eq!(outbox.publish(&outgoing).is_ok(), takes);
    let bytes = take(&mut outbox);
    assert_eq!(!bytes.is_empty(), takes);
    if takes {
        let Ok(Packet::Publish(sent)) = decode(whole(&bytes), version, Sender::Server) else {
            panic!("no PUBLISH: {bytes:02x?}")
        };
        let topic = if matches!(alias, Some((_, false))) && version.is_v5() { "" } else { publish.topic };
        assert_eq!(sent, Publish { topic, ..publish.clone() });
    }
}

/// What waits in `outbox`, taken in parts.
pub(super) fn take(outbox: &mut Outbox) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let part = outbox.slices().next().map_or(0, |slice| {
            let half = &slice[..slice.len().div_ceil(2)];
            bytes.extend_from_slice(half);
            half.len()
        });
        if part == 0 {
            break;
        }
        outbox.advance(part);
    }
    assert!(outbox.is_empty(), "{} bytes are in no slice", outbox.len());
    bytes
}
