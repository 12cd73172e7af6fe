//! What waits in a mailbox and its log, and what there is room for.

use super::*;

#[test]
fn a_queue_is_full_of_what_waits() {
    #[track_caller]
    fn check((tail, head, beyond): (u64, u64, u64), expected: bool) {
        let waiting = Extent { tail, head, beyond, ..Extent::default() }.waiting();
        let limits = |messages| Limits { messages, bytes: 0, full: QueueFull::Refuse };
        assert_eq!(limits(10).are_reached(waiting, u64::MAX / 2, 1), expected);
        assert!(!limits(0).are_reached(waiting, u64::MAX / 2, 1), "no limit");
    }
    check((9, 0, 0), false);
    check((10, 0, 0), true);
    check((110, 100, 0), true);
    check((110, 100, 1), false);
    // One that is stuck, and all behind it settled.
    check((1_000_000, 0, 999_999), false);
}

fn receiver(limits: (u64, u64), log: Extent) -> Receiver {
    let limits = Limits { messages: limits.0, bytes: limits.1, full: QueueFull::DropOldest };
    let queues = Arc::new(Queues::new(limits, 0));
    Receiver::new(1, "c".into(), Identity::ANONYMOUS, log.tail > 0, queues, log)
}

fn of_size(payload: usize) -> Delivery {
    let message = Message {
        topic: crate::mqtt::TopicName::parse("t").expect("a topic"),
        payload: vec![0; payload].into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: Box::default(),
        expires_at: None,
        publisher: 0,
    };
    delivery(&Arc::new(message), QoS::AtLeastOnce, false, None)
}

/// A log that is too long as its client comes is cut, although it was asked to before: nobody may have been there to do so.
#[test]
fn who_comes_is_told_that_its_log_is_too_long() {
    for (tail, expected) in [(10, 0), (11, Signal::OVERFULL)] {
        let receiver = receiver((10, 0), Extent { tail, ..Extent::default() });
        receiver.inbox.lock().asked = true;
        let signal = Arc::new(Signal::default());
        receiver.online(signal.clone(), 0, 0);
        assert_eq!(signal.take(Waker::noop()), expected);
        assert_eq!(receiver.inbox.lock().asked, tail == 11);
    }
}

/// What does not fit beside what a connection has in hand is refused; what waits stays.
#[test]
fn nothing_is_dropped_in_vain() {
    let each = of_size(1000).message.size() as u64;
    let receiver = receiver((0, 4 * each), Extent::default());
    receiver.online(Arc::default(), 0, 0);
    let put = |payload| {
        let mut dropped = 0;
        (matches!(receiver.put(of_size(payload), |_| dropped += 1), Put::Queued(_)), dropped)
    };
    for _ in 0..4 {
        assert_eq!(put(1000), (true, 0));
    }
    let mut mail = VecDeque::new();
    assert!(!receiver.take(&mut mail), "no log");
    assert_eq!(mail.len(), 2, "half of what may wait");
    assert_eq!(put(2500), (false, 0), "two are in hand");
    assert_eq!(put(1500), (true, 2));
    assert_eq!(put(1000), (true, 1));
}

/// What is retained goes to a log in which little waits, or little of what is retained, within its limits; to an empty one in any case.
#[test]
fn there_is_room_for_what_is_retained() {
    const MAX: usize = usize::MAX;
    #[track_caller]
    fn check(limits: (u64, u64), (waiting, bytes): (u64, u64), replayed: (u64, u64), expected: (usize, usize)) {
        let log = Extent { tail: 1000 + waiting, head: 1000, appended: bytes, ..Extent::default() };
        let receiver = receiver(limits, log);
        receiver.inbox.lock().replayed = replayed;
        assert_eq!(receiver.replay_room(), expected, "{waiting} of {bytes} bytes wait");
    }
    check((0, 0), (0, 0), (0, 0), (128, MAX));
    check((0, 0), (128, 9), (1128, 128), (128, MAX));
    check((0, 0), (129, 9), (1129, 129), (0, 0));
    check((0, 0), (5000, 9), (1128, 128), (128, MAX));
    // Those before are settled.
    check((0, 0), (5000, 9), (1000, 700), (128, MAX));
    check((10, 0), (7, 9), (0, 0), (3, MAX));
    check((10, 0), (10, 9), (0, 0), (0, 0));
    check((0, 500), (1, 450), (0, 0), (128, 50));
    check((0, 500), (1, 350), (0, 0), (128, 150));
    check((1, 1), (0, 0), (0, 0), (1, 1));
}
