//! Reading API responses: fields, lists, and the pages of a list.

use anyhow::Context;
use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::client::{Client, with_query};
use crate::exit::Failure;

/// The most rows that the server returns in one page.
pub(super) const PAGE_MAX: usize = 200;

pub(super) const UNKNOWN_FORMAT: &str = "the server's answer has an unknown format; use the same version for the program and the server";

/// Deserializes a response.
pub(super) fn read<T: DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    serde::Deserialize::deserialize(value).context(UNKNOWN_FORMAT)
}

/// A field that holds an array; empty if the field is missing.
pub(super) fn elements<'a>(answer: &'a Value, field: &str) -> &'a [Value] {
    answer[field].as_array().map_or(&[], Vec::as_slice)
}

/// A field that holds a string; empty if the field is missing.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// How many rows of a list to print.
#[derive(Debug, Args)]
pub(super) struct LimitArgs {
    /// How many rows to print.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Print all rows.
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

impl LimitArgs {
    pub(super) fn count(&self) -> usize {
        if self.all {
            usize::MAX
        } else {
            usize::try_from(self.limit).unwrap_or(usize::MAX)
        }
    }
}

/// Which of the last rows of a list to print.
#[derive(Debug, Args)]
pub(super) struct LastRowsArgs {
    /// How many to print, counted from the last.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Print earlier ones: 2 is the page before the last.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    page: u32,
}

/// Rows of a list whose pages begin with the newest.
pub(super) struct LastRows {
    /// The answer that they came with.
    pub(super) answer: Value,
    /// The oldest first.
    pub(super) rows: Vec<Value>,
    /// The flag that prints those before them, if there are any.
    pub(super) earlier: Option<String>,
}

impl LastRowsArgs {
    /// Fetches an answer whose list `field` comes in pages, the newest first.
    pub(super) async fn fetch(
        &self,
        client: &Client,
        (path, field): (&str, &str),
        shows_hidden: bool,
    ) -> anyhow::Result<LastRows> {
        let limit = usize::try_from(self.limit)?;
        let view = shows_hidden.then(|| "trace".to_owned());
        let mut skipped = limit * usize::try_from(self.page - 1)?;
        let mut rows: Vec<Value> = Vec::new();
        let mut cursor = None;
        loop {
            let missing = skipped + limit - rows.len();
            let parameters = [
                ("view", view.clone()),
                ("cursor", cursor.take()),
                ("limit", Some(missing.min(PAGE_MAX).to_string())),
            ];
            let answer = client.get(&with_query(path, &parameters)).await?.body;
            let found = elements(&answer, field);
            // The newest rows are at the end.
            let kept = found.len().saturating_sub(skipped);
            skipped = skipped.saturating_sub(found.len());
            let first = kept.saturating_sub(limit - rows.len());
            rows.splice(0..0, found[first..kept].iter().cloned());
            cursor = answer["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || rows.len() >= limit {
                let earlier = cursor.map(|_| format!("--page {}", self.page + 1));
                return Ok(LastRows {
                    answer,
                    rows,
                    earlier,
                });
            }
        }
    }
}

/// Reads a list page by page.
#[derive(Debug)]
pub(super) struct ListPages {
    path: &'static str,
    /// The field of the response that holds the rows.
    field: &'static str,
    filter: Vec<(&'static str, Option<String>)>,
    has_begun: bool,
    /// The cursor of the next page, if there is one.
    pub(super) cursor: Option<String>,
}

impl ListPages {
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

    /// Fetches the next page, of at most `limit` rows; returns `None` after the last page. A page
    /// may be empty without being the last.
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

    /// Wraps rows in one document with the layout of a server response.
    pub(super) fn document(self, rows: &[Value]) -> Value {
        let mut document = json!({ self.field: rows });
        if let Some(cursor) = self.cursor {
            document["next_cursor"] = cursor.into();
        }
        document
    }

    /// Fetches the first `limit` rows, from as many pages as needed.
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
