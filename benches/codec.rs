//! The message path of the codec: cut, decode, and encode to one receiver, per packet.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::{hint::black_box, num::NonZeroU16, sync::Arc};

use bytes::BytesMut;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use pinnace::mqtt::{
    Message, Outbox, Packet, QoS, ReasonCode, Timestamp, TopicName, Version,
    codec::{Sender, decode},
    frame::{Cut, cut},
    outbox::Outgoing,
    packet::AckKind,
};

/// A message to 26 bytes of topic, with a payload of `payload` bytes.
fn message(payload: usize) -> Arc<Message> {
    Arc::new(Message {
        topic: TopicName::parse("fleet/device-0042/state/up").unwrap(),
        payload: vec![7; payload].into(),
        qos: QoS::AtMostOnce,
        retain: false,
        properties: Box::default(),
        expires_at: None,
        publisher: 0,
    })
}

fn outgoing(message: &Arc<Message>, qos: QoS) -> Outgoing<'_> {
    Outgoing {
        message,
        qos,
        retain: false,
        dup: false,
        packet_id: NonZeroU16::new(7),
        subscription_ids: &[],
        topic_alias: None,
        now: Timestamp(0),
    }
}

fn frames(message: &Arc<Message>, version: Version, qos: QoS) -> Vec<u8> {
    let mut outbox = Outbox::new(version);
    for _ in 0..FRAMES {
        outbox.publish(&outgoing(message, qos)).unwrap();
    }
    outbox.slices().flatten().copied().collect()
}

/// Cuts and decodes all packets of `buffer`.
fn decode_all(mut buffer: &[u8], version: Version, mut each: impl FnMut(Packet<'_>)) {
    while let Ok(Cut::Whole(frame)) = cut(buffer, u32::MAX) {
        each(decode(frame, version, Sender::Client).unwrap());
        buffer = buffer.get(frame.len..).unwrap_or_default();
    }
}

fn publishes(c: &mut Criterion) {
    let mut group = c.benchmark_group("publish");
    group.throughput(Throughput::Elements(FRAMES));
    for (version, name) in [(Version::V3_1_1, "v3.1.1"), (Version::V5, "v5")] {
        for (qos, level) in [(QoS::AtMostOnce, "QoS 0"), (QoS::AtLeastOnce, "QoS 1")] {
            let message = message(64);
            let buffer = frames(&message, version, qos);
            group.bench_function(format!("decode {name} {level}"), |b| {
                b.iter(|| decode_all(&buffer, version, |packet| drop(black_box(packet))));
            });
            let mut outbox = Outbox::new(version);
            group.bench_function(format!("encode {name} {level}"), |b| {
                b.iter(|| {
                    for _ in 0..FRAMES {
                        outbox.publish(black_box(&outgoing(&message, qos))).unwrap();
                    }
                    outbox.advance(outbox.len());
                });
            });
        }
    }
    let message = message(64);
    group.bench_function("Topic Name", |b| b.iter(|| TopicName::parse(black_box(message.topic.as_str()))));
    group.finish();
}

/// The same work by mqttbytes, so that figures of one run on a busy machine can be told from another's.
fn baseline(c: &mut Criterion) {
    let mut group = c.benchmark_group("publish by mqttbytes");
    group.throughput(Throughput::Elements(FRAMES));
    let message = message(64);
    let buffer = frames(&message, Version::V3_1_1, QoS::AtMostOnce);
    group.bench_function("decode v3.1.1 QoS 0", |b| {
        b.iter_batched(
            || BytesMut::from(&buffer[..]),
            |mut buffer| {
                while let Ok(packet) = mqttbytes::v4::read(&mut buffer, usize::MAX) {
                    drop(black_box(packet));
                }
                buffer
            },
            BatchSize::SmallInput,
        );
    });
    let packet = mqttbytes::v4::Publish::from_bytes(message.topic.as_str(), QoS::AtMostOnce, vec![7; 64].into());
    let mut out = BytesMut::new();
    group.bench_function("encode v3.1.1 QoS 0", |b| {
        b.iter(|| {
            for _ in 0..FRAMES {
                black_box(&packet).write(&mut out).unwrap();
            }
            out.clear();
        });
    });
    group.finish();
}

fn acknowledgements(c: &mut Criterion) {
    let mut group = c.benchmark_group("ack");
    group.throughput(Throughput::Elements(FRAMES));
    let mut outbox = Outbox::new(Version::V5);
    group.bench_function("encode and decode v5 PUBACK", |b| {
        b.iter(|| {
            for _ in 0..FRAMES {
                outbox.ack(AckKind::PubAck, black_box(NonZeroU16::MIN), ReasonCode::Success);
            }
            for slice in outbox.slices() {
                decode_all(slice, Version::V5, |packet| drop(black_box(packet)));
            }
            outbox.advance(outbox.len());
        });
    });
    group.finish();
}

const FRAMES: u64 = 100;

criterion_group!(benches, publishes, baseline, acknowledgements);
criterion_main!(benches);
