//! `cargo fuzz run codec`: see fuzz/README.md.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pinnace_fuzz::harness::codec::run(data));
