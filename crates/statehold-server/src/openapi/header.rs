//! The headers of calls and answers, each described once.

use serde_json::{Value, json};

/// The headers that calls may carry, by the names under which operations refer to them.
pub(super) fn parameters() -> Value {
    let header = |name: &str, description: &str, schema: Value| {
        json!({
            "name": name, "in": "header", "required": false,
            "description": description, "schema": schema,
        })
    };
    json!({
        "IdempotencyKey": header(
            "Idempotency-Key",
            "The same key with the same call gets the same answer for 24 hours.",
            json!({"type": "string", "pattern": "^[!-~]{1,255}$"}),
        ),
        "DecisionKey": header(
            "Idempotency-Key",
            "The key of the decision. Without one, the same decision by the same principal is the \
             same decision.",
            json!({"type": "string", "pattern": "^[!-~]{1,255}$"}),
        ),
        "Credential": header(
            "x-statehold-credential",
            "A secret for the worker that claims the request. It is kept in memory only.",
            json!({"type": "string", "pattern": "^[!-~]([ -~]{0,8190}[!-~])?$"}),
        ),
        "IfMatch": header(
            "If-Match",
            "The revision that the session must have, in quotes as `ETag` gave it.",
            json!({"type": "string", "pattern": "^(\\*|\"[0-9]{1,19}\")$"}),
        ),
        "LastRevision": header(
            "Last-Event-ID",
            "Resume after this revision.",
            json!({"type": "string", "pattern": "^[0-9]{1,19}$"}),
        ),
        "LastPlace": header(
            "Last-Event-ID",
            "Resume after the event that had this id.",
            json!({"type": "string"}),
        ),
        "ChatSession": header(
            "x-statehold-session",
            "The session to continue, or `new`.",
            json!({"type": "string", "pattern": "^(new|ses_[0-9a-f]{32})$"}),
        ),
        "ChatTask": header(
            "x-statehold-task",
            "The task to continue.",
            json!({"$ref": "#/components/schemas/TaskId"}),
        ),
        "ChatApp": header(
            "x-statehold-app",
            "The app of a new session; `default` if left out.",
            json!({"$ref": "#/components/schemas/Name"}),
        ),
        "ChatWait": header(
            "x-statehold-wait",
            "How many seconds to wait for people before the answer says that the turn is paused.",
            json!({"type": "string", "pattern": "^[0-9]{1,4}$"}),
        ),
        "ChatDebug": header(
            "x-statehold-debug",
            "`1`: the answer carries the hidden items of its turn. Needs `operator`, and is audited.",
            json!({"type": "string", "enum": ["0", "1"]}),
        ),
    })
}

/// The headers that answers may carry, by the names under which responses refer to them.
pub(super) fn of_answers() -> Value {
    let header =
        |description: &str, schema: Value| json!({"description": description, "schema": schema});
    let id = |description: &str, name: &str| {
        header(
            description,
            json!({"$ref": format!("#/components/schemas/{name}")}),
        )
    };
    json!({
        "ETag": header(
            "The revision of the session, in quotes.",
            json!({"type": "string", "pattern": "^\"[0-9]+\"$"}),
        ),
        "x-statehold-session": id("The session that the answer is about.", "SessionId"),
        "x-statehold-task": id("The task that the answer is about.", "TaskId"),
        "x-statehold-request": id("The request that the answer is about.", "RequestId"),
        "Idempotency-Replayed": header(
            "This is the stored answer to an earlier call with the same key.",
            json!({"type": "string", "enum": ["true"]}),
        ),
    })
}
