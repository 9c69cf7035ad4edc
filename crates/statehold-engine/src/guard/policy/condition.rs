//! Approvals that depend on the arguments of a call.

use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::guard::schema::{FieldError, Schema};

/// One or more JSON Schemas for the arguments of a tool. A call that matches any of them needs approval.
#[derive(Debug, Clone)]
pub struct ArgsCondition {
    written: Arc<Value>,
    schemas: Vec<Arc<Schema>>,
}

impl ArgsCondition {
    /// Compiles a schema.
    ///
    /// # Errors
    ///
    /// If it is not a schema, is too large, or refers outside itself. The error names the path.
    pub fn new(schema: Value) -> Result<Self, FieldError> {
        Ok(Self {
            schemas: vec![Arc::new(Schema::new(&schema.to_string())?)],
            written: Arc::new(schema),
        })
    }

    /// A condition that is met if either of the two is.
    pub(super) fn or(self, other: Self) -> Self {
        if self == other {
            return self;
        }
        let written = serde_json::json!({ "anyOf": [&*self.written, &*other.written] });
        Self {
            written: Arc::new(written),
            schemas: self.schemas.into_iter().chain(other.schemas).collect(),
        }
    }

    fn fits(&self, args: &Value) -> bool {
        let mut schemas = self.schemas.iter();
        schemas.any(|schema| schema.errors(args).is_empty())
    }

    /// Whether a call with these arguments needs approval. Arguments that cannot be checked always do:
    /// missing arguments, non-objects, and text that does not parse as an object.
    pub fn is_met(&self, args: &Value) -> bool {
        match args {
            Value::Object(_) => self.fits(args),
            // Models write arguments as text, and workers may pass them on unparsed.
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                Ok(args) if args.is_object() => self.fits(&args),
                Ok(_) | Err(_) => true,
            },
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => true,
        }
    }
}

impl PartialEq for ArgsCondition {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

impl Eq for ArgsCondition {}

impl Serialize for ArgsCondition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.written.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{AgentPolicy, Approval, Effective, Policies, ToolPolicy};
    use super::*;

    fn large() -> ArgsCondition {
        let schema = json!({
            "type": "object",
            "properties": { "amount": { "type": "number", "minimum": 100 } },
            "required": ["amount"],
        });
        ArgsCondition::new(schema).expect("a schema")
    }

    fn under(approval: Option<Approval>, approval_if: Option<ArgsCondition>) -> Effective {
        Effective {
            policy: ToolPolicy {
                approval,
                approval_if,
                ..ToolPolicy::default()
            },
            digest: None,
        }
    }

    #[test]
    fn a_condition_decides_where_the_policy_does_not_say_always() {
        let (much, little) = (json!({ "amount": 100 }), json!({ "amount": 99.5 }));
        for approval in [None, Some(Approval::Worker), Some(Approval::Never)] {
            let conditional = under(approval, Some(large()));
            assert!(conditional.needs_approval(&much), "{approval:?}");
            assert!(!conditional.needs_approval(&little), "{approval:?}");
            let plain = under(approval, None);
            assert!(!plain.needs_approval(&much), "{approval:?}");
        }
        for condition in [None, Some(large())] {
            assert!(under(Some(Approval::Always), condition).needs_approval(&little));
        }
    }

    #[test]
    fn arguments_that_cannot_be_judged_need_an_approval() {
        let conditional = under(Some(Approval::Never), Some(large()));
        for unclear in [
            json!(null),
            json!([{ "amount": 1 }]),
            json!(1),
            json!("{\"amount\": 1"),
            json!("[1]"),
        ] {
            assert!(conditional.needs_approval(&unclear), "{unclear}");
            assert!(!under(None, None).needs_approval(&unclear), "{unclear}");
        }
        assert!(conditional.needs_approval(&json!("{\"amount\": 100}")));
        assert!(!conditional.needs_approval(&json!("{\"amount\": 1}")));
    }

    #[test]
    fn a_condition_is_part_of_the_digest_and_a_tool_goes_over_its_agent() {
        let never = ArgsCondition::new(json!(false)).expect("a schema");
        let policies = |every: Option<ArgsCondition>, own: Option<ArgsCondition>| {
            let tool = |approval_if| ToolPolicy {
                approval_if,
                ..ToolPolicy::default()
            };
            let agent = AgentPolicy {
                every_tool: tool(every),
                tools: [("pay".parse().expect("a name"), tool(own))].into(),
            };
            let policies = Policies {
                agents: [("bank".parse().expect("a name"), agent)].into(),
                ..Policies::default()
            };
            policies.of(&"bank".parse().expect("a name"), "pay")
        };
        let much = json!({ "amount": 100 });
        let inherited = policies(Some(large()), None);
        assert!(inherited.needs_approval(&much));
        assert!(!policies(Some(large()), Some(never.clone())).needs_approval(&much));
        assert_eq!(inherited, policies(None, Some(large())));
        assert_ne!(inherited.digest, policies(None, Some(never)).digest);
        assert_ne!(inherited.digest, policies(None, None).digest);
    }

    #[test]
    fn what_is_no_schema_is_no_condition() {
        for wrong in [
            json!(1),
            json!({ "type": "text" }),
            json!({ "$ref": "https://a.example/b" }),
        ] {
            ArgsCondition::new(wrong.clone()).expect_err(&wrong.to_string());
        }
    }
}
