//! What one packet of a client, or its Will, may hold. Must not know who enforces it.

use super::{Limits, Violation};
use crate::mqtt::{
    packet::{Publish, Will},
    property::count_user_properties,
};

/// What one packet of a client may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketLimits {
    topic_levels: u16,
    topic_bytes: u16,
    filters: u32,
    user_properties: u32,
    user_property_bytes: u32,
}

impl Default for PacketLimits {
    fn default() -> Self {
        let (topic_levels, topic_bytes) = (u16::MAX, u16::MAX);
        Self { topic_levels, topic_bytes, filters: u32::MAX, user_properties: 0, user_property_bytes: 0 }
    }
}

impl From<&Limits> for PacketLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            topic_levels: limits.max_topic_levels.get(),
            topic_bytes: limits.max_topic_bytes.get(),
            filters: limits.max_filters_per_packet.get(),
            user_properties: limits.max_user_properties,
            user_property_bytes: limits.max_user_property_bytes,
        }
    }
}

impl PacketLimits {
    /// A PUBLISH as it came; its alias is not resolved.
    ///
    /// # Errors
    /// The limit that it exceeds.
    pub(super) fn publish(&self, publish: &Publish<'_>) -> Result<(), Violation> {
        if publish.topic.len() > usize::from(self.topic_bytes) {
            return Err(Violation::TopicTooLong(self.topic_bytes));
        }
        self.properties(&publish.properties)
    }

    /// A message that is retained, under its full Topic Name.
    ///
    /// # Errors
    /// [`Violation::TooManyLevels`]
    pub(super) fn retained(&self, topic: &str) -> Result<(), Violation> {
        if self.allows_levels(topic) { Ok(()) } else { Err(Violation::TooManyLevels(self.topic_levels)) }
    }

    /// Encoded properties that are forwarded.
    fn properties(&self, properties: &[u8]) -> Result<(), Violation> {
        // The shortest User Property takes five bytes: most lists need not be read.
        let few = self.user_properties == 0 || properties.len() / USER_PROPERTY_MIN <= self.user_properties as usize;
        let small = self.user_property_bytes == 0 || properties.len() <= self.user_property_bytes as usize;
        if few && small {
            return Ok(());
        }
        let count = count_user_properties(properties);
        if count > 0 && !small {
            return Err(Violation::UserPropertiesTooLarge(self.user_property_bytes));
        }
        if self.user_properties > 0 && count > self.user_properties as usize {
            return Err(Violation::TooManyUserProperties(self.user_properties));
        }
        Ok(())
    }

    /// So many filters stand in one packet.
    pub(super) fn filters(&self, count: usize) -> Result<(), Violation> {
        if count > self.filters as usize { Err(Violation::TooManyFilters(self.filters)) } else { Ok(()) }
    }

    /// Whether a filter, or the name of what is retained, may be kept: it is neither too long nor too deep.
    #[must_use]
    pub fn allows_topic(&self, topic: &str) -> bool {
        topic.len() <= usize::from(self.topic_bytes) && self.allows_levels(topic)
    }

    fn allows_levels(&self, topic: &str) -> bool {
        topic.bytes().filter(|byte| *byte == b'/').count() < usize::from(self.topic_levels)
    }
}

impl Limits {
    /// Whether a Will is within the limits.
    ///
    /// # Errors
    /// The limit that it exceeds.
    pub fn check_will(&self, will: &Will) -> Result<(), Violation> {
        let packet = PacketLimits::from(self);
        let topic = will.topic.as_str();
        if topic.len() > usize::from(packet.topic_bytes) {
            return Err(Violation::TopicTooLong(packet.topic_bytes));
        }
        if will.retain {
            packet.retained(topic)?;
        }
        packet.properties(&will.properties)?;
        let size = topic.len() + will.payload.len() + will.properties.len();
        let most = self.max_will_bytes.get();
        if size > most as usize { Err(Violation::WillTooLarge(most)) } else { Ok(()) }
    }
}

const USER_PROPERTY_MIN: usize = 5;
