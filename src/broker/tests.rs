//! Tests of the broker without sockets.

mod failures;
mod groups;
mod races;
mod trims;

use std::num::NonZeroU16;

use crate::mqtt::{
    Version,
    packet::{Connect, Will},
};

fn connect(client_id: &str, expiry_secs: u32, will: Option<Will>) -> Connect {
    Connect {
        version: Version::V5,
        clean_start: false,
        keep_alive_secs: 0,
        client_id: client_id.to_owned(),
        will,
        username: None,
        password: None,
        session_expiry_secs: expiry_secs,
        receive_maximum: NonZeroU16::MAX,
        maximum_packet_size: u32::MAX,
        topic_alias_maximum: 0,
        request_response_information: false,
        request_problem_information: true,
        authentication_method: None,
        authentication_data: None,
    }
}
