//! Answers of `:chat`: texts, queries, data and charts of the system, one message after another. Only final texts are
//! shown. Unknown messages and members are kept for the history and otherwise ignored.

use http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use statehold_engine::bodies::Raw;

use super::elements::{ElementError, ElementReader};
use crate::draft_writer::MESSAGE_SEPARATOR;
use crate::http::{EndpointError, ServiceRequest, ServiceResponse};
use crate::message::raw;
use crate::turn::TraceNote;
use crate::turn_memory;

/// The most bytes of system messages that are kept of one answer.
const MESSAGES_BYTES_MAX: usize = 1024 * 1024;
/// Limits of what the trace has of one answer: notes, characters of a query, names of columns, bytes of a chart.
const NOTES_MAX: usize = 32;
const SQL_CHARS_MAX: usize = 4 * 1024;
const FIELDS_MAX: usize = 64;
const CHART_BYTES_MAX: usize = 16 * 1024;
/// Limits of the questions that a service proposes.
const QUESTIONS_MAX: usize = 8;
const QUESTION_CHARS_MAX: usize = 300;

/// A complete answer.
#[derive(Debug)]
pub(crate) struct AnalyticsReply {
    /// The final texts. Never empty.
    pub(crate) text: String,
    /// Questions that the user may ask next.
    pub(crate) followup_questions: Vec<String>,
    /// The system messages as they came. The longest are left out if all are too long together.
    pub(crate) messages: Vec<Raw>,
    /// The last data result.
    pub(crate) data: Option<DataResult>,
    /// Queries, data, charts and errors, for the trace.
    pub(crate) notes: Vec<TraceNote>,
    pub(crate) headers: HeaderMap,
}

/// A data result, and the query that it came from.
#[derive(Debug, Default)]
pub(crate) struct DataResult {
    name: Option<String>,
    sql: Option<String>,
    schema: Option<Raw>,
    rows: Vec<Raw>,
}

impl DataResult {
    /// The result as one value of at most so many bytes. The last rows are left out if it is too long.
    pub(crate) fn to_value(&self, bytes_max: usize) -> Raw {
        #[derive(Serialize)]
        struct DataValue<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            name: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            sql: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            schema: Option<&'a RawValue>,
            rows: &'a [Raw],
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            truncated: bool,
        }
        let mut value = DataValue {
            name: self.name.as_deref(),
            sql: self.sql.as_deref(),
            schema: self.schema.as_deref(),
            rows: &[],
            truncated: true,
        };
        let is_too_long = |value: &DataValue<'_>| raw(value).get().len() > bytes_max;
        let mut is_whole = true;
        for part in 0..3 {
            if !is_too_long(&value) {
                break;
            }
            is_whole = false;
            match part {
                0 => value.schema = None,
                1 => value.sql = None,
                _ => value.name = None,
            }
        }
        let mut room = bytes_max.saturating_sub(raw(&value).get().len());
        let fitting = self.rows.iter().take_while(|row| {
            let left = room.checked_sub(row.get().len() + 1);
            room = left.unwrap_or(0);
            left.is_some()
        });
        value.rows = &self.rows[..fitting.count()];
        value.truncated = !is_whole || value.rows.len() < self.rows.len();
        raw(&value)
    }
}

/// Reads a response to the end of its array. Passes final texts to `on_text`.
pub(super) async fn read_answer(
    answer: &mut ServiceResponse<'_>,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<AnalyticsReply, EndpointError> {
    let request = answer.request();
    let mut reader = ElementReader::default();
    let mut assembly = AnswerAssembly::default();
    while !reader.is_done() {
        let Some(chunk) = answer.next_chunk().await? else {
            return Err(if reader.is_empty() {
                EndpointError::Malformed("it is empty")
            } else {
                EndpointError::CutOff
            });
        };
        let elements = reader.push(&chunk).map_err(|error| match error {
            ElementError::TooLong => EndpointError::TooLarge("at most 4 MiB for one message"),
            ElementError::NotAnArray => EndpointError::Malformed("it is not a list of messages"),
        })?;
        for element in elements {
            turn_memory::take(element.len())?;
            assembly.add(request, &element, on_text)?;
        }
    }
    answer.read_trailing().await;
    let headers = answer.headers().clone();
    assembly.into_reply(headers)
}

/// The members of a message that are read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StreamedMessage<'a> {
    #[serde(borrow, alias = "system_message")]
    system_message: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct SystemParts<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    data: Option<&'a RawValue>,
    chart: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TextMessage {
    parts: Vec<Value>,
    /// Some services write the names of the API's definition. A thought must not count as final by its spelling.
    #[serde(alias = "text_type")]
    text_type: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DataMessage {
    #[serde(alias = "generated_sql")]
    generated_sql: Option<String>,
    result: Option<ResultMessage>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResultMessage {
    name: Option<String>,
    schema: Option<Raw>,
    data: Vec<Raw>,
    #[serde(alias = "formatted_data")]
    formatted_data: Vec<Raw>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorMessage {
    text: String,
}

/// Whether a text is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextKind {
    Final,
    FollowupQuestions,
    /// A thought, progress, or a kind that is not known.
    Passing,
}

impl TextMessage {
    /// The kind, by its word or its number. A text without one is final.
    fn kind(&self) -> TextKind {
        match (self.text_type.as_str(), self.text_type.as_u64()) {
            (Some("FINAL_RESPONSE" | "TEXT_TYPE_UNSPECIFIED"), _) | (_, Some(0 | 1)) => {
                TextKind::Final
            }
            (Some("FOLLOWUP_QUESTIONS"), _) | (_, Some(4)) => TextKind::FollowupQuestions,
            (None, None) if self.text_type.is_null() => TextKind::Final,
            _ => TextKind::Passing,
        }
    }

    fn parts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(Value::as_str)
    }
}

/// Parses a part of a message. One of another form than expected counts as empty.
fn lenient<'a, T: Deserialize<'a> + Default>(json: Option<&'a RawValue>) -> T {
    let parsed = json.map(|json| serde_json::from_str(json.get()));
    parsed.and_then(Result::ok).unwrap_or_default()
}

/// The answer so far.
#[derive(Default)]
struct AnswerAssembly {
    text: String,
    followup_questions: Vec<String>,
    /// Each with whether it has a final text.
    messages: Vec<(Raw, bool)>,
    sql: Option<String>,
    data: Option<DataResult>,
    notes: Vec<TraceNote>,
    notes_left_out: usize,
    error: Option<String>,
}

impl AnswerAssembly {
    fn add(
        &mut self,
        request: &ServiceRequest,
        element: &[u8],
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), EndpointError> {
        const NOT_A_MESSAGE: EndpointError = EndpointError::Malformed("a message in it is damaged");
        let text = String::from_utf8(element.to_vec()).map_err(|_| NOT_A_MESSAGE)?;
        let message = RawValue::from_string(text).map_err(|_| NOT_A_MESSAGE)?;
        let element: StreamedMessage<'_> = lenient(Some(&message));
        if let Some(error) = element.error {
            return Err(request.embedded_error(error.get()));
        }
        let Some(system) = element.system_message else {
            return Ok(());
        };
        let system: SystemParts<'_> = lenient(Some(system));
        let is_final = system.text.is_some_and(|text| self.add_text(text, on_text));
        if let Some(data) = system.data {
            self.add_data(lenient(Some(data)));
        }
        if let Some(chart) = system.chart {
            self.add_chart(chart);
        }
        if let Some(error) = system.error {
            let error: ErrorMessage = lenient(Some(error));
            let error = request.redact(&error.text);
            self.note("analytics_error", &json!({ "text": error }));
            self.error = Some(error);
        }
        self.messages.push((message, is_final));
        Ok(())
    }

    /// Adds a text. Returns whether it is a final one.
    fn add_text(&mut self, text: &RawValue, on_text: &mut (dyn FnMut(&str) + Send)) -> bool {
        let message: TextMessage = lenient(Some(text));
        match message.kind() {
            TextKind::Final => {
                let text: String = message.parts().collect();
                if text.is_empty() {
                    return false;
                }
                let begins = if self.text.is_empty() {
                    ""
                } else {
                    MESSAGE_SEPARATOR
                };
                for piece in [begins, &text].into_iter().filter(|one| !one.is_empty()) {
                    self.text.push_str(piece);
                    on_text(piece);
                }
                true
            }
            TextKind::FollowupQuestions => {
                let room = QUESTIONS_MAX.saturating_sub(self.followup_questions.len());
                let questions = message.parts().take(room);
                let questions = questions.map(|text| clip(text, QUESTION_CHARS_MAX));
                self.followup_questions.extend(questions);
                false
            }
            TextKind::Passing => false,
        }
    }

    fn add_data(&mut self, message: DataMessage) {
        if let Some(sql) = message.generated_sql {
            let shown = clip(&sql, SQL_CHARS_MAX);
            self.note("analytics_sql", &json!({ "sql": shown }));
            self.sql = Some(sql);
        }
        let Some(result) = message.result else {
            return;
        };
        let rows = if result.data.is_empty() {
            result.formatted_data
        } else {
            result.data
        };
        let note = json!({
            "name": result.name,
            "fields": field_names(result.schema.as_deref()),
            "rows": rows.len(),
        });
        self.note("analytics_data", &note);
        self.data = Some(DataResult {
            name: result.name,
            sql: self.sql.clone(),
            schema: result.schema,
            rows,
        });
    }

    fn add_chart(&mut self, chart: &RawValue) {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct ChartMessage {
            result: Option<ChartResult>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct ChartResult {
            vega_config: Option<Raw>,
        }
        let message: ChartMessage = lenient(Some(chart));
        let Some(result) = message.result else {
            return;
        };
        let fits = |config: &Raw| config.get().len() <= CHART_BYTES_MAX;
        // A picture, or a long configuration, is in the trace by its length only.
        match result.vega_config.filter(fits) {
            Some(config) => self.note("analytics_chart", &json!({ "vega_config": config })),
            None => self.note("analytics_chart", &json!({ "bytes": chart.get().len() })),
        }
    }

    fn note(&mut self, name: &'static str, data: &impl Serialize) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(TraceNote::new(name, data));
        } else {
            self.notes_left_out += 1;
        }
    }

    fn into_reply(mut self, headers: HeaderMap) -> Result<AnalyticsReply, EndpointError> {
        if self.text.is_empty() {
            return Err(match self.error {
                Some(error) if error.is_empty() => {
                    EndpointError::NoAnswer("it gave no reason".to_owned())
                }
                Some(error) => EndpointError::NoAnswer(error),
                None => EndpointError::Malformed("it has no final text"),
            });
        }
        let (messages, left_out) = fitting_messages(self.messages);
        if left_out > 0 {
            let note = json!({ "messages": left_out, "bytes_max": MESSAGES_BYTES_MAX });
            self.notes
                .push(TraceNote::new("analytics_messages_left_out", &note));
        }
        if self.notes_left_out > 0 {
            let note = json!({ "notes": self.notes_left_out });
            self.notes
                .push(TraceNote::new("analytics_notes_left_out", &note));
        }
        Ok(AnalyticsReply {
            text: self.text,
            followup_questions: self.followup_questions,
            messages,
            data: self.data,
            notes: self.notes,
            headers,
        })
    }
}

/// The system messages of an answer that are kept, and the number of the others: the longest go first, final texts
/// last and together.
fn fitting_messages(messages: Vec<(Raw, bool)>) -> (Vec<Raw>, usize) {
    let total = messages.len();
    let mut bytes: usize = messages.iter().map(|(one, _)| one.get().len()).sum();
    let mut by_length: Vec<usize> = (0..total).filter(|&at| !messages[at].1).collect();
    by_length.sort_by_key(|&at| messages[at].0.get().len());
    let mut is_kept = vec![true; total];
    while bytes > MESSAGES_BYTES_MAX
        && let Some(longest) = by_length.pop()
    {
        is_kept[longest] = false;
        bytes -= messages[longest].0.get().len();
    }
    if bytes > MESSAGES_BYTES_MAX {
        return (Vec::new(), total);
    }
    let kept = messages.into_iter().zip(is_kept);
    let kept: Vec<Raw> = kept
        .filter(|(_, is_kept)| *is_kept)
        .map(|((one, _), _)| one)
        .collect();
    let left_out = total - kept.len();
    (kept, left_out)
}

fn field_names(schema: Option<&RawValue>) -> Vec<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct DataSchema {
        fields: Vec<DataField>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct DataField {
        name: String,
    }
    let schema: DataSchema = lenient(schema);
    let fields = schema.fields.into_iter().take(FIELDS_MAX);
    fields
        .map(|field| clip(&field.name, QUESTION_CHARS_MAX))
        .collect()
}

fn clip(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whether a message of the history has a final text.
pub(crate) fn is_final_text(message: &RawValue) -> bool {
    let element: StreamedMessage<'_> = lenient(Some(message));
    let system: SystemParts<'_> = lenient(element.system_message);
    let text: TextMessage = lenient(system.text);
    text.kind() == TextKind::Final && text.parts().any(|part| !part.is_empty())
}

/// A message of the user.
pub(crate) fn user_message(text: &str) -> Raw {
    raw(&json!({ "userMessage": { "text": text } }))
}

/// An answer as a message of the system.
pub(crate) fn system_text(text: &str) -> Raw {
    let text = json!({ "parts": [text], "textType": "FINAL_RESPONSE" });
    raw(&json!({ "systemMessage": { "text": text } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Raw {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    #[test]
    fn a_thought_is_not_final_however_its_type_is_spelt() {
        for (message, is_final) in [
            (
                r#"{"systemMessage":{"text":{"parts":["x"],"textType":"THOUGHT"}}}"#,
                false,
            ),
            (
                r#"{"system_message":{"text":{"parts":["x"],"text_type":"THOUGHT"}}}"#,
                false,
            ),
            (
                r#"{"systemMessage":{"text":{"parts":["x"],"textType":"FINAL_RESPONSE","text_type":"THOUGHT"}}}"#,
                false,
            ),
            (
                r#"{"system_message":{"text":{"parts":["x"],"text_type":"FINAL_RESPONSE"}}}"#,
                true,
            ),
        ] {
            assert_eq!(is_final_text(&json(message)), is_final, "{message}");
        }
    }

    #[test]
    fn a_data_result_keeps_the_first_rows_that_fit() {
        let mut result = DataResult {
            name: Some("r".to_owned()),
            sql: Some("SELECT 1".to_owned()),
            schema: Some(json(r#"{"fields":[]}"#)),
            rows: ["[1]", "[2]", "[3]"].map(json).into(),
        };
        let whole = r#"{"name":"r","sql":"SELECT 1","schema":{"fields":[]},"rows":[[1],[2],[3]]}"#;
        assert_eq!(result.to_value(1_000).get(), whole);
        for bytes_max in 30..120 {
            let value = result.to_value(bytes_max);
            assert!(value.get().len() <= bytes_max, "{bytes_max}: {value}");
            let is_whole = value.get() == whole;
            assert_eq!(
                value.get().contains(r#""truncated":true"#),
                !is_whole,
                "{value}"
            );
        }
        let two = r#"{"name":"r","sql":"SELECT 1","schema":{"fields":[]},"rows":[[1],[2]],"truncated":true}"#;
        assert_eq!(result.to_value(two.len() + 1).get(), two);
        // Rows come before a schema or a query that leaves no room.
        result.schema = Some(raw(&"x".repeat(200)));
        let without = r#"{"name":"r","sql":"SELECT 1","rows":[[1],[2],[3]],"truncated":true}"#;
        assert_eq!(result.to_value(200).get(), without);
        result.sql = Some("x".repeat(200));
        let without = r#"{"name":"r","rows":[[1],[2],[3]],"truncated":true}"#;
        assert_eq!(result.to_value(200).get(), without);
        result.name = Some("x".repeat(200));
        assert_eq!(
            result.to_value(60).get(),
            r#"{"rows":[[1],[2],[3]],"truncated":true}"#
        );
    }

    #[test]
    fn the_longest_messages_go_first_and_final_texts_go_together() {
        let long = |bytes: usize| raw(&"x".repeat(bytes));
        let half = MESSAGES_BYTES_MAX / 2;
        let lengths = |messages: Vec<(Raw, bool)>| {
            let (kept, left_out) = fitting_messages(messages);
            let kept: Vec<usize> = kept.iter().map(|one| one.get().len() - 2).collect();
            (kept, left_out)
        };
        let all = vec![
            (long(half), false),
            (long(10), false),
            (long(half + 1), false),
            (long(20), true),
        ];
        assert_eq!(lengths(all), (vec![half, 10, 20], 1));
        let finals = vec![(long(10), false), (long(half), true), (long(half), true)];
        assert_eq!(lengths(finals), (vec![], 3));
    }
}
