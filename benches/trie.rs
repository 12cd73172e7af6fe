//! The trie in both directions: subscriptions by topic, retained messages by filter; and a filter with many subscribers.

#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use pinnace::{
    mqtt::{
        QoS, TopicFilter, TopicName, TopicTrie,
        packet::{RetainHandling, SubscriptionOptions},
    },
    router::{Router, Subscription, Target},
};

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

/// A filter that a whole fleet subscribes to, and how long it takes to come, to be found and to go.
fn fan_out(c: &mut Criterion) {
    let mut group = c.benchmark_group("fan-out");
    group.sample_size(10);
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let subscription = |n: u64| Subscription { target: Target::Session(n), options, subscription_id: 0 };
    // In no order: 7,919 is prime to the count.
    let sessions: Vec<u64> = (0..u64::from(DEVICES)).map(|n| n * 7919 % u64::from(DEVICES)).collect();
    let (all, own) = (filter("fleet/all/command"), filter("fleet/+/command"));
    let subscribed = |sessions: &[u64]| {
        let mut router = Router::default();
        for &n in sessions {
            router.subscribe(&all, subscription(n));
        }
        router
    };
    let in_order: Vec<u64> = (0..u64::from(DEVICES)).collect();
    group.bench_function("100,000 subscribe to one filter in order", |b| b.iter(|| subscribed(&in_order)));
    group.bench_function("100,000 subscribe to one filter and leave it, in no order", |b| {
        b.iter(|| {
            let mut router = subscribed(&sessions);
            for &n in &sessions {
                router.unsubscribe(&all, Target::Session(n));
            }
            router
        });
    });
    let mut router = subscribed(&sessions);
    let topic = TopicName::parse("fleet/all/command").unwrap();
    group.bench_function("route to 100,000", |b| b.iter(|| router.route(black_box(&topic), 0)));
    for n in 0..100 {
        router.subscribe(&own, subscription(n));
    }
    group.bench_function("route to 100,000 by two filters", |b| b.iter(|| router.route(black_box(&topic), 0)));
    group.finish();
}

const DEVICES: u32 = 100_000;

criterion_group!(benches, subscriptions, retained, fan_out);
criterion_main!(benches);
