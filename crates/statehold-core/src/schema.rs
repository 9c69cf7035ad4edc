//! `OpenAPI` schemas of the text types. Compiled with the feature `schema` only.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::digest::Digest;
use crate::name::Name;
use crate::scope::StateKey;

/// A text with a description.
pub(crate) fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
}

impl PartialSchema for Name {
    fn schema() -> RefOr<Schema> {
        text("1 to 128 letters, digits, dots, dashes or underscores.")
            .max_length(Some(128))
            .pattern(Some("^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"))
            .into()
    }
}

impl ToSchema for Name {}

impl PartialSchema for StateKey {
    fn schema() -> RefOr<Schema> {
        let rule = "`app:…`, `user:…`, `temp:…`, or no prefix for the session; at most 512 bytes \
                    without control characters.";
        text(rule)
            .max_length(Some(512))
            .pattern(Some(
                r"^((app|user|temp):[^\u0000-\u001f\u007f-\u009f]+|[^:\u0000-\u001f\u007f-\u009f]+)$",
            ))
            .into()
    }
}

impl ToSchema for StateKey {}

impl PartialSchema for Digest {
    fn schema() -> RefOr<Schema> {
        text("SHA-256 in hexadecimal.")
            .pattern(Some("^[0-9a-f]{64}$"))
            .into()
    }
}

impl ToSchema for Digest {}
