//! Operations of the long-running forms. Every operation is finished when it is answered, so none is stored: its id
//! says what it did.

use serde::Serialize;
use serde_json::{Map, Value, json};
use statehold_engine::api::json::Time;

use super::agents;
use super::place::Place;
use crate::http::call::CallContext;
use crate::http::problem::Problem;

/// A finished operation.
#[derive(Debug, Serialize)]
pub(super) struct OperationOut {
    name: String,
    done: bool,
    response: Value,
    metadata: Value,
}

/// The deed of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Create,
    Update,
    Delete,
}

impl Deed {
    fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

impl OperationOut {
    /// The operation that did this to a data agent, which is given as it is now, unless it was deleted.
    pub(super) fn of(
        context: &CallContext,
        place: &Place,
        (deed, id): (Deed, &str),
        agent: Option<Map<String, Value>>,
    ) -> Self {
        let now = Time::from(context.engine().now());
        let typed = |mut fields: Map<String, Value>, kind: String| {
            fields.insert("@type".to_owned(), kind.into());
            Value::Object(fields)
        };
        let response = match agent {
            Some(agent) => typed(agent, place.version.type_url("DataAgent")),
            None => json!({"@type": "type.googleapis.com/google.protobuf.Empty"}),
        };
        let metadata = json!({
            "@type": place.version.type_url("OperationMetadata"),
            "createTime": now,
            "endTime": now,
            "target": place.name("dataAgents", id),
            "verb": deed.word(),
            "requestedCancellation": false,
        });
        Self {
            name: place.name("operations", &format!("{}-{id}", deed.word())),
            done: true,
            response,
            metadata,
        }
    }
}

/// Reads an operation by its id.
pub(super) async fn read(
    context: &CallContext,
    place: &Place,
    id: &str,
) -> Result<OperationOut, Problem> {
    let deeds = [Deed::Create, Deed::Update, Deed::Delete].into_iter();
    let mut found = deeds.filter_map(|deed| Some((deed, id.strip_prefix(deed.word())?)));
    let found = found.next();
    let found = found.and_then(|(deed, rest)| Some((deed, rest.strip_prefix('-')?)));
    let (deed, agent) = found.ok_or_else(Problem::not_found)?;
    let shown = match deed {
        Deed::Create | Deed::Update => Some(agents::read(context, place, agent).await?),
        Deed::Delete => None,
    };
    Ok(OperationOut::of(context, place, (deed, agent), shown))
}
