//! Reading what a server answers: fields, lists, and the pages of a list.

use anyhow::Context;
use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::{Client, with_query};
use crate::exit::Failure;

/// The most rows that a server gives at once.
pub(super) const PAGE_MAX: usize = 200;

/// Reads what a server sent as what it should be.
pub(super) fn read<T: DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    serde::Deserialize::deserialize(value)
        .context("the server answered in a form that this version does not know")
}

/// A field that is a list.
pub(super) fn elements<'a>(answer: &'a Value, field: &str) -> &'a [Value] {
    answer[field].as_array().map_or(&[], Vec::as_slice)
}

/// A field that is text; empty if it is not there.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// How much of a list to print.
#[derive(Debug, Args)]
pub(super) struct Limit {
    /// How many to print.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print all of them.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

impl Limit {
    pub(super) fn count(&self) -> usize {
        if self.all {
            usize::MAX
        } else {
            usize::try_from(self.limit).unwrap_or(usize::MAX)
        }
    }
}

/// The pages of a list.
#[derive(Debug)]
pub(super) struct Pages {
    path: &'static str,
    /// The field that has the rows.
    field: &'static str,
    filter: Vec<(&'static str, Option<String>)>,
    has_begun: bool,
    /// Where the rest begins, if there is a rest.
    pub(super) cursor: Option<String>,
}

impl Pages {
    pub(super) fn sessions(filter: Vec<(&'static str, Option<String>)>) -> Self {
        Self::new("/v1/sessions", "sessions", filter)
    }

    pub(super) fn holds(filter: Vec<(&'static str, Option<String>)>) -> Self {
        Self::new("/v1/holds", "holds", filter)
    }

    fn new(
        path: &'static str,
        field: &'static str,
        filter: Vec<(&'static str, Option<String>)>,
    ) -> Self {
        Self {
            path,
            field,
            filter,
            has_begun: false,
            cursor: None,
        }
    }

    /// The next page, of at most `limit` rows; none after the last one. It may be empty and still
    /// not be the last.
    pub(super) async fn next(
        &mut self,
        client: &Client,
        limit: usize,
    ) -> Result<Option<Vec<Value>>, Failure> {
        if self.has_begun && self.cursor.is_none() {
            return Ok(None);
        }
        self.has_begun = true;
        let mut parameters = self.filter.clone();
        parameters.push(("cursor", self.cursor.take()));
        parameters.push(("limit", Some(limit.min(PAGE_MAX).to_string())));
        let answer = client.get(&with_query(self.path, &parameters)).await?;
        self.cursor = answer.body["next_cursor"].as_str().map(str::to_owned);
        Ok(Some(elements(&answer.body, self.field).to_vec()))
    }

    /// Rows as one document, as the server would have sent them.
    pub(super) fn document(self, rows: &[Value]) -> Value {
        let mut document = json!({ self.field: rows });
        if let Some(cursor) = self.cursor {
            document["next_cursor"] = cursor.into();
        }
        document
    }

    /// The first `limit` rows, from as many pages as that takes.
    pub(super) async fn take(
        &mut self,
        client: &Client,
        limit: usize,
    ) -> Result<Vec<Value>, Failure> {
        let mut rows = Vec::new();
        while rows.len() < limit
            && let Some(page) = self.next(client, limit - rows.len()).await?
        {
            rows.extend(page);
        }
        Ok(rows)
    }
}
