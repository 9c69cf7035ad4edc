//! A JSON object whose members keep their exact text and order.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use statehold_engine::bodies::Raw;

/// A JSON object with raw members.
#[derive(Debug, Clone, Default)]
pub(super) struct RawObject(pub(super) Vec<(String, Raw)>);

impl RawObject {
    /// Parses an object. None for other values.
    pub(super) fn parse(text: &RawValue) -> Option<Self> {
        serde_json::from_str(text.get()).ok()
    }

    /// A member by name. Of duplicates the last one counts, as in most JSON parsers.
    pub(super) fn get(&self, name: &str) -> Option<&RawValue> {
        let mut members = self.0.iter().rev();
        let found = members.find(|(known, _)| known == name);
        found.map(|(_, value)| &**value)
    }

    /// Removes all members with other names.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|(name, _)| is_kept(name));
    }

    /// Replaces an existing member.
    pub(super) fn replace(&mut self, name: &str, value: Raw) {
        let mut members = self.0.iter_mut().rev();
        if let Some((_, place)) = members.find(|(known, _)| known == name) {
            *place = value;
        }
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RawObjectVisitor;
        impl<'de> Visitor<'de> for RawObjectVisitor {
            type Value = RawObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawObject, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(RawObject(members))
            }
        }
        deserializer.deserialize_map(RawObjectVisitor)
    }
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
