//! Properties of MQTT 5.0 (2.2.2): one table of identifiers, types and the packets that they belong to.
//!
//! Must not know what a property is for.

use std::num::{NonZeroU16, NonZeroU32};

use super::{
    codec::TooLong,
    malformed::Malformed,
    topic::TopicName,
    wire::{Reader, VARINT_MAX, put_binary, put_u16, put_varint, put_with_length},
};

/// Declares [`Property`] and everything that follows from its table.
macro_rules! properties {
    ($($id:literal $name:ident($type:ty): $($place:ident)+;)*) => {
        /// A property with its value, named as in 2.2.2.2.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)] // each is named as in the specification's own table
        pub enum Property<'a> {
            $($name($type),)*
        }

        impl<'a> Property<'a> {
            /// Its identifier.
            #[must_use]
            pub fn id(&self) -> u8 {
                match self {
                    $(Self::$name(_) => $id,)*
                }
            }

            fn read(id: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
                match id {
                    $($id => <$type>::read(id, reader).map(Self::$name),)*
                    _ => Err(Malformed::UnknownProperty(id)),
                }
            }

            pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
                out.push(self.id());
                match self {
                    $(Self::$name(value) => value.write(out),)*
                }
            }
        }

        /// The set of packets that `id` belongs to.
        fn places(id: u8) -> u16 {
            match id {
                $($id => $(Place::$place as u16)|+,)*
                _ => u16::MAX, // unknown: read says so
            }
        }
    };
}

properties! {
    0x01 PayloadFormatIndicator(bool): Publish Will;
    0x02 MessageExpiryInterval(u32): Publish Will;
    0x03 ContentType(&'a str): Publish Will;
    0x08 ResponseTopic(&'a str): Publish Will;
    0x09 CorrelationData(&'a [u8]): Publish Will;
    0x0B SubscriptionIdentifier(SubscriptionId): Publish Subscribe;
    0x11 SessionExpiryInterval(u32): Connect ConnAck Disconnect;
    0x12 AssignedClientIdentifier(&'a str): ConnAck;
    0x13 ServerKeepAlive(u16): ConnAck;
    0x15 AuthenticationMethod(&'a str): Connect ConnAck Auth;
    0x16 AuthenticationData(&'a [u8]): Connect ConnAck Auth;
    0x17 RequestProblemInformation(bool): Connect;
    0x18 WillDelayInterval(u32): Will;
    0x19 RequestResponseInformation(bool): Connect;
    0x1A ResponseInformation(&'a str): ConnAck;
    0x1C ServerReference(&'a str): ConnAck Disconnect;
    0x1F ReasonString(&'a str): ConnAck Ack SubAck Disconnect Auth;
    0x21 ReceiveMaximum(NonZeroU16): Connect ConnAck;
    0x22 TopicAliasMaximum(u16): Connect ConnAck;
    0x23 TopicAlias(TopicAlias): Publish;
    0x24 MaximumQoS(bool): ConnAck;
    0x25 RetainAvailable(bool): ConnAck;
    0x26 UserProperty((&'a str, &'a str)): Connect ConnAck Publish Will Ack Subscribe SubAck Unsubscribe Disconnect Auth;
    0x27 MaximumPacketSize(NonZeroU32): Connect ConnAck;
    0x28 WildcardSubscriptionAvailable(bool): ConnAck;
    0x29 SubscriptionIdentifierAvailable(bool): ConnAck;
    0x2A SharedSubscriptionAvailable(bool): ConnAck;
}

/// Where a list of properties stands. PUBACK, PUBREC, PUBREL and PUBCOMP take the same, so do SUBACK and UNSUBACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // each is named for its packet
pub enum Place {
    Connect = 1,
    ConnAck = 1 << 1,
    Publish = 1 << 2,
    Will = 1 << 3,
    Ack = 1 << 4,
    Subscribe = 1 << 5,
    SubAck = 1 << 6,
    Unsubscribe = 1 << 7,
    Disconnect = 1 << 8,
    Auth = 1 << 9,
}

/// How many User Properties stand in `encoded`: a list that was checked, as in [`super::Message::properties`].
#[must_use]
pub fn count_user_properties(encoded: &[u8]) -> usize {
    let properties = Properties { reader: Reader::new(encoded), place: Place::Publish, seen: 0 };
    properties.filter(|property| matches!(property, Ok(Property::UserProperty(_)))).count()
}

/// The properties in `encoded`, a list as in [`super::Message::properties`].
pub fn kept(encoded: &[u8]) -> impl Iterator<Item = Result<Property<'_>, Malformed>> {
    Properties::kept(encoded)
}

/// Encodes such a list.
///
/// # Errors
/// [`Malformed`]: it is not one that a PUBLISH may carry and that is kept.
pub fn keep<'p>(properties: impl IntoIterator<Item = Property<'p>>) -> Result<Box<[u8]>, Malformed> {
    let mut encoded = Vec::new();
    for property in properties {
        // A string or binary value has at most 65,535 bytes.
        property.write(&mut encoded).map_err(|TooLong| Malformed::PropertyValue(property.id()))?;
    }
    kept(&encoded).try_for_each(|property| property.map(drop))?;
    Ok(encoded.into())
}

/// A list of properties, read strictly: unknown ones, those of other packets, forbidden values and repetitions are errors.
#[derive(Debug)]
pub(super) struct Properties<'a> {
    reader: Reader<'a>,
    place: Place,
    /// One bit per identifier.
    seen: u64,
}

impl<'a> Properties<'a> {
    /// Takes the Property Length and as many bytes off `reader` [MQTT-2.2.2-1].
    pub(super) fn read(reader: &mut Reader<'a>, place: Place) -> Result<Self, Malformed> {
        let len = reader.varint()?;
        Ok(Self { reader: Reader::new(reader.take(len as usize)?), place, seen: 0 })
    }

    /// Those of a message, as they were kept when it was decoded.
    pub(super) fn kept(encoded: &'a [u8]) -> Self {
        Self { reader: Reader::new(encoded), place: Place::Will, seen: 0 }
    }

    /// Reads all, for a packet that keeps none.
    pub(super) fn check(reader: &mut Reader<'a>, place: Place) -> Result<(), Malformed> {
        Self::read(reader, place)?.try_for_each(|property| property.map(drop))
    }

    /// The encoded form of what was not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.reader.rest()
    }

    fn property(&mut self) -> Result<Property<'a>, Malformed> {
        let id = self.reader.u8()?;
        if places(id) & self.place as u16 == 0 {
            return Err(Malformed::ForeignProperty(id));
        }
        let property = Property::read(id, &mut self.reader)?;
        let repeats = match property {
            Property::UserProperty(_) => true,
            Property::SubscriptionIdentifier(_) => self.place == Place::Publish,
            _ => false,
        };
        if self.seen >> id & 1 == 1 && !repeats {
            return Err(Malformed::DuplicateProperty(id));
        }
        self.seen |= 1 << id;
        if let Property::ResponseTopic(topic) = property {
            TopicName::check(topic).map_err(Malformed::ResponseTopic)?;
        }
        Ok(property)
    }
}

impl<'a> Iterator for Properties<'a> {
    type Item = Result<Property<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.reader.is_empty()).then(|| self.property())
    }
}

/// Writes the Property Length and `properties`.
pub(super) fn put_properties<'p>(
    out: &mut Vec<u8>,
    properties: impl IntoIterator<Item = Property<'p>>,
) -> Result<(), TooLong> {
    put_with_length(out, |out| properties.into_iter().try_for_each(|property| property.write(out)))
}

/// A Subscription Identifier: 1 to 268,435,455 (3.8.2.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionId(pub u32);

/// A Topic Alias [MQTT-3.3.2-8].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicAlias(pub NonZeroU16);

/// How a type of 2.2.2.2 is encoded. `id` names the property in errors.
trait Value<'a>: Sized {
    fn read(id: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed>;
    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong>;
}

impl<'a> Value<'a> for bool {
    fn read(id: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::PropertyValue(id)),
        }
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        out.push(u8::from(*self));
        Ok(())
    }
}

impl<'a> Value<'a> for u16 {
    fn read(_: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.u16()
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        put_u16(out, *self);
        Ok(())
    }
}

impl<'a> Value<'a> for NonZeroU16 {
    fn read(id: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Self::new(reader.u16()?).ok_or(Malformed::PropertyValue(id))
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        self.get().write(out)
    }
}

impl<'a> Value<'a> for u32 {
    fn read(_: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.u32()
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        out.extend_from_slice(&self.to_be_bytes());
        Ok(())
    }
}

impl<'a> Value<'a> for NonZeroU32 {
    fn read(id: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Self::new(reader.u32()?).ok_or(Malformed::PropertyValue(id))
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        self.get().write(out)
    }
}

impl<'a> Value<'a> for SubscriptionId {
    fn read(id: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match reader.varint()? {
            0 => Err(Malformed::PropertyValue(id)),
            value => Ok(Self(value)),
        }
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        if self.0 > VARINT_MAX {
            return Err(TooLong);
        }
        put_varint(out, self.0);
        Ok(())
    }
}

impl<'a> Value<'a> for TopicAlias {
    fn read(_: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        NonZeroU16::new(reader.u16()?).map(Self).ok_or(Malformed::TopicAliasZero)
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        self.0.write(out)
    }
}

impl<'a> Value<'a> for &'a str {
    fn read(_: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.text()
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        put_binary(out, self.as_bytes())
    }
}

impl<'a> Value<'a> for &'a [u8] {
    fn read(_: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.binary()
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        put_binary(out, self)
    }
}

impl<'a> Value<'a> for (&'a str, &'a str) {
    /// [MQTT-1.5.7-1]
    fn read(_: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok((reader.text()?, reader.text()?))
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), TooLong> {
        self.0.write(out)?;
        self.1.write(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(place: Place, encoded: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut body = Vec::new();
        put_with_length(&mut body, |out| {
            out.extend_from_slice(encoded);
            Ok(())
        })
        .unwrap();
        let mut reader = Reader::new(&body);
        let properties: Vec<_> = Properties::read(&mut reader, place)?.collect::<Result<_, _>>()?;
        let mut again = Vec::new();
        put_properties(&mut again, properties.iter().copied()).unwrap();
        assert_eq!(again, body);
        Ok(properties.iter().map(Property::id).collect())
    }

    #[test]
    fn strictness() {
        #[track_caller]
        fn check(place: Place, encoded: &[u8], expected: Result<&[u8], Malformed>) {
            assert_eq!(read(place, encoded), expected.map(<[u8]>::to_vec));
        }
        check(Place::Connect, &[], Ok(&[]));
        check(Place::Connect, &[0x21, 0, 1, 0x11, 0, 0, 0, 0, 0x26, 0, 1, b'a', 0, 0], Ok(&[0x21, 0x11, 0x26]));
        check(Place::Ack, &[0x26, 0, 0, 0, 0, 0x26, 0, 0, 0, 0], Ok(&[0x26, 0x26]));
        check(Place::Publish, &[0x0B, 1, 0x0B, 0xFF, 0xFF, 0xFF, 0x7F], Ok(&[0x0B, 0x0B]));
        check(Place::Subscribe, &[0x0B, 1, 0x0B, 2], Err(Malformed::DuplicateProperty(0x0B)));
        check(Place::Connect, &[0x21, 0, 1, 0x21, 0, 1], Err(Malformed::DuplicateProperty(0x21)));
        check(Place::Subscribe, &[0x0B, 0], Err(Malformed::PropertyValue(0x0B)));
        check(Place::Connect, &[0x21, 0, 0], Err(Malformed::PropertyValue(0x21)));
        check(Place::Connect, &[0x27, 0, 0, 0, 0], Err(Malformed::PropertyValue(0x27)));
        check(Place::Connect, &[0x17, 7], Err(Malformed::PropertyValue(0x17)));
        check(Place::Publish, &[0x01, 9], Err(Malformed::PropertyValue(0x01)));
        check(Place::ConnAck, &[0x24, 2], Err(Malformed::PropertyValue(0x24)));
        check(Place::Publish, &[0x23, 0, 0], Err(Malformed::TopicAliasZero));
        check(Place::Ack, &[0x21, 0, 1], Err(Malformed::ForeignProperty(0x21)));
        check(Place::Unsubscribe, &[0x0B, 1], Err(Malformed::ForeignProperty(0x0B)));
        check(Place::Connect, &[0x04, 0], Err(Malformed::UnknownProperty(0x04)));
        check(Place::Connect, &[0x80, 1], Err(Malformed::UnknownProperty(0x80)));
        check(Place::Connect, &[0x21, 0], Err(Malformed::Short));
        check(Place::Ack, &[0x26, 0, 1, b'a', 0, 2, b'b'], Err(Malformed::Short));
        check(Place::Ack, &[0x1F, 0, 1, 0], Err(Malformed::Nul));
        check(Place::Ack, &[0x1F, 0, 1, 0xFF], Err(Malformed::Utf8));
        check(Place::Publish, &[0x08, 0, 3, b'a', b'/', b'b'], Ok(&[0x08]));
        for (bad, why) in [(&b"a/#"[..], "wildcards"), (b"+/a", "wildcards"), (b"", "empty")] {
            let encoded = [&[0x08, 0, bad.len() as u8], bad].concat();
            assert!(matches!(read(Place::Publish, &encoded), Err(Malformed::ResponseTopic(_))), "{why}");
            assert!(matches!(read(Place::Will, &encoded), Err(Malformed::ResponseTopic(_))), "{why}");
        }
    }

    #[test]
    fn a_length_beyond_the_body() {
        assert!(matches!(Properties::read(&mut Reader::new(&[3, 0x17, 1]), Place::Connect), Err(Malformed::Short)));
    }

    /// The table of 2.2.2.2, packet by packet.
    #[test]
    fn places_of_properties() {
        #[track_caller]
        fn check(place: Place, expected: &[u8]) {
            let ids: Vec<u8> =
                (0..=0x7F).filter(|&id| places(id) != u16::MAX && places(id) & place as u16 != 0).collect();
            assert_eq!(ids, expected, "{place:?}");
        }
        check(Place::Connect, &[0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27]);
        check(
            Place::ConnAck,
            &[0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2A],
        );
        check(Place::Publish, &[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26]);
        check(Place::Will, &[0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26]);
        check(Place::Ack, &[0x1F, 0x26]);
        check(Place::Subscribe, &[0x0B, 0x26]);
        check(Place::SubAck, &[0x1F, 0x26]);
        check(Place::Unsubscribe, &[0x26]);
        check(Place::Disconnect, &[0x11, 0x1C, 0x1F, 0x26]);
        check(Place::Auth, &[0x15, 0x16, 0x1F, 0x26]);
    }
}
