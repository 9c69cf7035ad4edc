//! The query of a call: paging, masks and ids. Unknown parameters are ignored.

use std::collections::BTreeMap;

use http::Uri;
use statehold_engine::{Call, IdempotencyKey};
use uuid::Uuid;

use crate::http::call::CallContext;
use crate::http::problem::{Code, Problem};

/// Default and maximum number of entries on a page. Larger wishes are cut.
const PAGE_DEFAULT: usize = 50;
const PAGE_MAX: usize = 100;

/// The parameters of a query.
#[derive(Debug, Default)]
pub(super) struct Query(BTreeMap<String, String>);

/// A page of a list.
pub(super) struct Paging<'a> {
    pub(super) size: usize,
    pub(super) token: Option<&'a str>,
}

impl Query {
    pub(super) fn of(uri: &Uri) -> Result<Self, Problem> {
        let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
        let query = query.map_err(|error| Problem::new(Code::BadQuery, error.to_string()))?;
        Ok(Self(query.0.into_iter().collect()))
    }

    /// A parameter that is not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let text = self.0.get(name).map(String::as_str);
        text.filter(|text| !text.is_empty())
    }

    pub(super) fn paging(&self) -> Result<Paging<'_>, Problem> {
        let size = match self.text("pageSize") {
            None => PAGE_DEFAULT,
            Some(size) => match size.parse::<i64>() {
                Ok(0) => PAGE_DEFAULT,
                Ok(size) if size > 0 => usize::try_from(size).unwrap_or(PAGE_MAX).min(PAGE_MAX),
                _ => {
                    let detail = "`pageSize` is a number, 0 or more";
                    return Err(Problem::new(Code::BadQuery, detail));
                }
            },
        };
        Ok(Paging {
            size,
            token: self.text("pageToken"),
        })
    }

    /// The id of the call, by which a repetition is known: a UUID, not the zero one.
    pub(super) fn request_id(&self) -> Result<Option<String>, Problem> {
        let Some(id) = self.text("requestId") else {
            return Ok(None);
        };
        let parsed = Uuid::parse_str(id).ok().filter(|id| !id.is_nil());
        let parsed = parsed.map(|id| id.to_string());
        parsed.map(Some).ok_or_else(|| {
            let detail = "`requestId` is a UUID, and not the one of zeros";
            Problem::new(Code::BadQuery, detail)
        })
    }

    /// The call for the engine, with the request id as its key.
    pub(super) fn call(&self, context: &CallContext, body: &[u8]) -> Result<Call, Problem> {
        let call = context.call(body);
        let Some(id) = self.request_id()? else {
            return Ok(call);
        };
        let caller = &context.caller;
        let parts = [context.path().as_bytes(), body];
        // No key of a header has a blank in it.
        let key = format!("request {id}");
        let key = IdempotencyKey::new(&caller.tenant, caller.principal, &key, &parts);
        Ok(Call {
            key: Some(key),
            ..call
        })
    }
}

/// The fields that a patch changes.
pub(super) struct UpdateMask(Option<Vec<String>>);

impl UpdateMask {
    pub(super) fn of(query: &Query) -> Self {
        let mask = query.text("updateMask").filter(|mask| *mask != "*");
        let paths = mask.map(|mask| mask.split(',').map(|path| camel_case(path.trim())));
        Self(paths.map(Iterator::collect))
    }

    /// Whether a field is to be changed. Without a mask: if it was sent.
    pub(super) fn has(&self, field: &str, is_sent: bool) -> bool {
        match &self.0 {
            None => is_sent,
            Some(paths) => paths.iter().any(|path| path == field),
        }
    }

    /// The paths of the mask. None means every field that was sent.
    pub(super) fn paths(&self) -> Option<&[String]> {
        self.0.as_deref()
    }
}

/// A field path in the form of JSON, also if it came in the form of the schema.
fn camel_case(path: &str) -> String {
    let mut name = String::with_capacity(path.len());
    let mut is_next_upper = false;
    for c in path.chars() {
        if c == '_' {
            is_next_upper = true;
        } else if is_next_upper {
            name.extend(c.to_uppercase());
            is_next_upper = false;
        } else {
            name.push(c);
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        let uri = format!("/v1/x?{text}").parse().expect("an address");
        Query::of(&uri).expect("a query")
    }

    #[test]
    fn pages_are_cut_and_ids_are_checked() {
        assert_eq!(query("").paging().expect("a page").size, 50);
        assert_eq!(query("pageSize=1000").paging().expect("a page").size, 100);
        assert!(query("pageSize=-1").paging().is_err());
        let id = "requestId=3fa85f64-5717-4562-b3fc-2c963f66afa6";
        assert!(query(id).request_id().expect("an id").is_some());
        let zero = "requestId=00000000-0000-0000-0000-000000000000";
        assert!(query(zero).request_id().is_err());
        assert!(query("requestId=1").request_id().is_err());
    }

    #[test]
    fn a_mask_names_fields_in_either_form() {
        let mask = UpdateMask::of(&query("updateMask=display_name,labels"));
        assert!(mask.has("displayName", false) && mask.has("labels", false));
        assert!(!mask.has("description", true));
        assert!(UpdateMask::of(&query("")).has("title", true));
    }
}
