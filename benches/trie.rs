//! The trie in both directions: subscriptions by topic, retained messages by filter.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use pinnace::mqtt::{TopicFilter, TopicName, TopicTrie};

fn filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).unwrap()
}

fn subscriptions(c: &mut Criterion) {
    let mut group = c.benchmark_group("subscriptions");
    let mut fleet = TopicTrie::new();
    for n in 0..DEVICES {
        fleet.get_or_insert_with(&filter(&format!("fleet/{n}/command/#")), || n);
        fleet.get_or_insert_with(&filter(&format!("fleet/{n}/state/up")), || n);
    }
    fleet.get_or_insert_with(&filter("fleet/+/state/#"), || 0);
    let topic = TopicName::parse("fleet/4711/state/up").unwrap();
    group.bench_function("200,001 filters of a fleet", |b| {
        b.iter(|| {
            fleet.matches(black_box(&topic), &mut |value| {
                black_box(*value);
            })
        });
    });

    // Case D93: 256 of these match, and no search looks at fewer.
    let mut wild = TopicTrie::new();
    for n in 0..10_000_u32 {
        let levels: Vec<_> = (0..8).map(|bit| if n >> bit & 1 == 1 { "+" } else { "x" }).collect();
        wild.get_or_insert_with(&filter(&format!("{}/{}", levels.join("/"), n >> 8)), || n);
    }
    let topic = TopicName::parse("x/x/x/x/x/x/x/x/3").unwrap();
    group.bench_function("10,000 filters of + at 8 levels", |b| {
        b.iter(|| {
            wild.matches(black_box(&topic), &mut |value| {
                black_box(*value);
            })
        });
    });
    group.bench_function("insert and remove", |b| {
        let filter = filter("fleet/new/command/#");
        b.iter(|| {
            fleet.get_or_insert_with(&filter, || 1);
            fleet.remove(black_box(&filter))
        });
    });
    group.finish();
}

fn retained(c: &mut Criterion) {
    let mut group = c.benchmark_group("retained");
    let mut trie = TopicTrie::new();
    for n in 0..DEVICES {
        trie.insert_topic(&TopicName::parse(&format!("fleet/{n}/state/up")).unwrap(), n);
    }
    for text in ["fleet/4711/#", "fleet/4711/+/up", "fleet/+/state/down", "#"] {
        let filter = filter(text);
        group.bench_function(format!("100,000 topics, {text}"), |b| {
            b.iter(|| {
                trie.matching(black_box(&filter), &mut |value| {
                    black_box(*value);
                })
            });
        });
    }
    group.finish();
}

const DEVICES: u32 = 100_000;

criterion_group!(benches, subscriptions, retained);
criterion_main!(benches);
