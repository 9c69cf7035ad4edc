//! Declarations of the demo agents: descriptions, routing rules, and approval policies.

use std::sync::Arc;
use std::time::Duration;

use regex::Regex;
use statehold_agents::spec::{
    AgentKind, AgentSpec, CallerTrust, FinalAnswer, RouterSpec, Routing, RoutingRule, StageDetail,
    StateFormat,
};
use statehold_core::digest::Digest;
use statehold_core::hold::{DecideBy, Effect, OnExpiry, Risk};
use statehold_core::name::Name;
use statehold_core::scope::StateKey;
use statehold_engine::policy::{AgentPolicy, Approval, Policies, ToolPolicy};

use super::{help, ums, weather};

pub(super) const COORDINATOR: &str = "coordinator";
pub(super) const MATH: &str = "math-agent";
pub(super) const WEATHER: &str = "weather-agent";
pub(super) const UMS: &str = "ums-agent";

/// The timeout of one turn. A turn takes milliseconds, or waits for a person.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The agents, in the order of the start banner.
pub(crate) fn book() -> Vec<AgentSpec> {
    let coordinator = AgentKind::Router(Arc::new(RouterSpec {
        agents: [MATH, WEATHER, UMS].map(name).into(),
        routing: Routing::Rules {
            rules: rules(),
            // This agent explains the demo if it does not understand a message.
            otherwise: Some(name(MATH)),
        },
        answer: FinalAnswer::Pass,
    }));
    vec![
        agent(
            COORDINATOR,
            "Chooses one of the demo agents for each message, by rules, not a model.",
            coordinator,
        ),
        agent(
            MATH,
            "Calculates: sums, square roots, fibonacci numbers. Says what the demo can do.",
            AgentKind::Worker,
        ),
        AgentSpec {
            import: vec![key(weather::LAST_LOCATION)],
            export: vec![key(weather::LAST_LOCATION)],
            ..agent(
                WEATHER,
                "Knows the weather of ten places, and asks back which Springfield is meant.",
                AgentKind::Worker,
            )
        },
        agent(
            UMS,
            "Looks after the demo users: lists and creates them, and deletes one if a person approves.",
            AgentKind::Worker,
        ),
    ]
}

fn agent(text: &str, description: &str, kind: AgentKind) -> AgentSpec {
    let declared = format!("demo {} {text} {description}", env!("CARGO_PKG_VERSION"));
    AgentSpec {
        name: name(text),
        description: Some(description.to_owned()),
        sessions: kind.default_sessions(),
        caller_history: CallerTrust::default(),
        references: false,
        stages: StageDetail::default(),
        state_format: StateFormat::default(),
        brief_on_loss: false,
        pauses: false,
        kind,
        import: Vec::new(),
        export: Vec::new(),
        output_key: None,
        state_schema: None,
        keep_pairs: None,
        timeout: TIMEOUT,
        retries: 0,
        digest: Digest::sha256(declared.as_bytes()),
    }
}

/// The first match wins: users before weather before sums, because names of users and places may be
/// anything and both topics use the word "add".
fn rules() -> Vec<RoutingRule> {
    let places = weather::names_pattern();
    let about_weather = format!(
        r"(?i)\b(weather|temperature|forecast|sunny|rain(ing|y)?|how (hot|cold|warm)|{places})\b"
    );
    let sums = r"(?i)(\d\s*[-+*/×÷−x:]\s*[\d(]|\b(plus|minus|times|divided|square root|sqrt|fib|fibonacci|calculate|compute|sum)\b)";
    [
        (help::DECISION_PATTERN, UMS),
        (
            r"(?i)(\busers?\b|^\W*(please |now |then )?(delete|remove)\b)",
            UMS,
        ),
        (about_weather.as_str(), WEATHER),
        (sums, MATH),
    ]
    .map(|(pattern, agent)| RoutingRule {
        pattern: Regex::new(pattern).expect("a fixed pattern is one"),
        agent: name(agent),
        instructions: None,
    })
    .into()
}

/// Adds the policies of the demo tools, unless the agent has policies already.
pub(super) fn add_policies(policies: &mut Policies) {
    let delete = ToolPolicy {
        approval: Some(Approval::Always),
        decide_by: Some(DecideBy::Other),
        effect: Some(Effect::Destructive),
        expires_in_seconds: Some(ums::DECIDE_WITHIN_SECONDS),
        // The effect and its result are one commit; see `ums`.
        idempotent: Some(true),
        on_expiry: Some(OnExpiry::Reject),
        risk: Some(Risk::High),
        ..ToolPolicy::default()
    };
    policies
        .agents
        .entry(name(UMS))
        .or_insert_with(|| AgentPolicy {
            tools: [(name(ums::DELETE_USER), delete)].into(),
            ..AgentPolicy::default()
        });
}

pub(super) fn name(text: &str) -> Name {
    text.parse().expect("a fixed name is a name")
}

fn key(text: &str) -> StateKey {
    text.parse().expect("a fixed key is a key")
}

#[cfg(test)]
mod tests {
    use statehold_agents::spec::ChatSessions;

    use super::*;

    /// The agent of the first matching rule.
    fn routed(text: &str) -> String {
        let rules = rules();
        let rule = rules.iter().find(|rule| rule.pattern.is_match(text));
        rule.map_or_else(|| MATH.to_owned(), |rule| rule.agent.to_string())
    }

    #[test]
    fn each_message_of_the_tutorial_reaches_its_agent() {
        for (text, agent) in [
            ("What's 2+2", MATH),
            ("What's the temperature in Rahway, NJ", WEATHER),
            ("What's the square root of 121?", MATH),
            ("Calculate fibonacci(10)", MATH),
            ("Now calculate fibonacci(20)", MATH),
            ("List users", UMS),
            ("What's the weather in Paris?", WEATHER),
            ("Springfield, IL", WEATHER),
            ("Delete the first user", UMS),
            ("Delete user 7", UMS),
            ("delete the first one", UMS),
            ("Create user Jean Bartik", UMS),
            ("Create user Paris Hilton", UMS),
            ("add 2 plus 3", MATH),
            ("6 x 7", MATH),
            ("approved", UMS),
            ("Yes!", UMS),
            ("Hello", MATH),
            ("What can you do?", MATH),
        ] {
            assert_eq!(routed(text), agent, "{text}");
        }
    }

    #[test]
    fn the_coordinator_chooses_among_agents_that_there_are() {
        let book = book();
        let names: Vec<&str> = book.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, [COORDINATOR, MATH, WEATHER, UMS]);
        let AgentKind::Router(router) = &book[0].kind else {
            panic!("it routes");
        };
        assert!(
            router
                .agents
                .iter()
                .all(|name| names.contains(&name.as_str()))
        );
        let description = book[0].description.as_deref().unwrap_or_default();
        assert!(description.contains("rules, not a model"));
        assert_eq!(book[0].sessions, ChatSessions::Auto);
    }

    #[test]
    fn a_configured_policy_stays_as_it_is() {
        let mut policies = Policies::default();
        add_policies(&mut policies);
        let effective = policies.of(&name(UMS), ums::DELETE_USER).policy;
        assert_eq!(effective.approval, Some(Approval::Always));
        assert_eq!(effective.risk, Some(Risk::High));
        let mut own = Policies::default();
        own.agents.insert(name(UMS), AgentPolicy::default());
        let before = own.clone();
        add_policies(&mut own);
        assert_eq!(own.agents, before.agents);
    }
}
