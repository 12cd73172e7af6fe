//! A start that takes long tells how far it is, and lets nobody in before it is over.

use serde_json::Value as Json;

use crate::support::{
    Setup,
    client::publish_of,
    eventually,
    wire::{self, PUBACK, Publish},
};

const RETAINED: u32 = 40_000;
const AT_ONCE: u32 = 500;

#[test]
fn a_long_start_tells_how_far_it_is() {
    let mut broker = Setup::new().durability("os").start();
    let mut publisher = broker.v4("publisher");
    for from in (0..RETAINED).step_by(AT_ONCE as usize) {
        let publish = |n: u32| Publish {
            id: (n % AT_ONCE) as u16 + 1,
            retain: true,
            ..publish_of(&format!("retained/{n}"), "x", 1)
        };
        let burst = (from..from + AT_ONCE).flat_map(|n| wire::publish(false, &publish(n)));
        publisher.send(&burst.collect::<Vec<u8>>());
        (1..=AT_ONCE as u16).for_each(|id| assert_eq!(publisher.acknowledged(PUBACK, id), 0));
    }
    assert_eq!(broker.terminate().code(), Some(0));
    let seen = std::thread::scope(|scope| {
        let socket = broker.data_dir().join("control.sock");
        let watching = scope.spawn(move || {
            eventually("a broker that reads its store", || {
                let status = crate::support::broker::try_status(&socket)?;
                (status["recovery"]["records_read"].as_u64()? > 0 || status["state"] == "running").then_some(status)
            })
        });
        broker.restart();
        watching.join().unwrap()
    });
    assert_eq!((&seen["state"], &seen["ready"]), (&Json::from("recovering"), &Json::from(false)), "{seen}");
    let of = seen["recovery"]["records_estimated"].as_u64().unwrap();
    assert!((u64::from(RETAINED) / 2..u64::from(RETAINED) * 2).contains(&of), "{seen}");
    assert_eq!(broker.status()["state"], "running");
    broker.until_status("retained_messages", |count| count == u64::from(RETAINED));
}
