//! One session and its client: packets in, deliveries, commits and time, in any order; the client is hostile where it likes.
//!
//! Must not know the session's inside: what is checked is what both sides of it see.

mod client;
mod world;

use arbitrary::Unstructured;

use world::World;

/// Each step is chosen by the input; at its end all is well, and nothing may be left.
pub fn run(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(mut world) = World::new(&mut input) else { return };
    while !input.is_empty() && world.step(&mut input).is_ok() {}
    world.calm();
}
