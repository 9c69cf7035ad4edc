//! Policies, and a worker's terms under them.

use super::*;

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn policies() -> Policies {
    let every_tool = ToolPolicy {
        decide_by: Some(DecideBy::Role(name("boss"))),
        risk: Some(Risk::Low),
        ..ToolPolicy::default()
    };
    let delete = ToolPolicy {
        risk: Some(Risk::Medium),
        effect: Some(Effect::Write),
        quorum: Some(2),
        idempotent: Some(false),
        expires_in_seconds: Some(60),
        on_expiry: Some(OnExpiry::Fail),
        ..ToolPolicy::default()
    };
    let agent = AgentPolicy {
        every_tool,
        tools: [(name("delete"), delete)].into(),
    };
    Policies {
        agents: [(name("ums"), agent)].into(),
        ..Policies::default()
    }
}

#[test]
fn what_is_not_named_any_more_holds_for_whoever_still_calls_it() {
    let ask = |approval| ToolPolicy {
        approval: Some(approval),
        ..ToolPolicy::default()
    };
    let agent = |tools: &[(&str, Approval)]| AgentPolicy {
        tools: tools
            .iter()
            .map(|(tool, word)| (name(tool), ask(*word)))
            .collect(),
        ..AgentPolicy::default()
    };
    let policies = |agents: &[(&str, &[(&str, Approval)])]| Policies {
        agents: agents
            .iter()
            .map(|(one, tools)| (name(one), agent(tools)))
            .collect(),
        ..Policies::default()
    };
    let first = policies(&[
        (
            "ums",
            &[("delete", Approval::Always), ("list", Approval::Always)],
        ),
        ("gone", &[("pay", Approval::Always)]),
    ]);
    let second = policies(&[("ums", &[("list", Approval::Never)])]).in_place_of(&first);
    let needs = |policies: &Policies, agent: &str, tool: &str| {
        let effective = policies.of(&name(agent), tool);
        effective.needs_approval(&serde_json::json!({}))
    };
    assert!(needs(&second, "ums", "delete") && needs(&second, "ums", "files__delete"));
    assert!(needs(&second, "gone", "pay"));
    assert!(!needs(&second, "ums", "list"), "this was said");
    let kept: Vec<_> = second.kept_tools().collect();
    assert_eq!(kept, [(&name("ums"), &name("delete"))]);
    // Still so after any number of reloads, until a new policy replaces it.
    let third = policies(&[("ums", &[])]).in_place_of(&second);
    assert!(needs(&third, "ums", "delete") && needs(&third, "gone", "pay"));
    assert!(!needs(&third, "ums", "list"));
    let fourth = policies(&[("gone", &[("pay", Approval::Never)])]).in_place_of(&third);
    assert!(!needs(&fourth, "gone", "pay") && needs(&fourth, "ums", "delete"));
}

#[test]
fn a_tool_goes_over_its_agent_and_has_a_digest_of_its_own() {
    let policies = policies();
    let delete = policies.of(&name("ums"), "delete");
    assert_eq!(delete.policy.risk, Some(Risk::Medium));
    assert_eq!(delete.policy.decide_by, Some(DecideBy::Role(name("boss"))));
    let other = policies.of(&name("ums"), "read");
    assert_eq!(other.policy.risk, Some(Risk::Low));
    assert!(other.digest.is_some() && other.digest != delete.digest);
    assert_eq!(policies.of(&name("x"), "delete"), Effective::default());
    assert_eq!(Effective::default().rules().patterns, [Pattern::Secret]);
}

#[test]
fn a_tool_with_its_server_before_it_is_under_the_stricter_of_both() {
    let path = |text: &str| PathRule::try_from(text.to_owned()).expect("a path");
    let plain = ToolPolicy {
        approval: Some(Approval::Always),
        decide_by: Some(DecideBy::User),
        idempotent: Some(false),
        redact: Some(vec![path("/pin")]),
        expires_in_seconds: Some(60),
        ..ToolPolicy::default()
    };
    let long = ToolPolicy {
        approval: Some(Approval::Never),
        decide_by: Some(DecideBy::Role(name("boss"))),
        idempotent: Some(true),
        redact: Some(vec![path("/email")]),
        quorum: Some(2),
        expires_in_seconds: Some(90),
        ..ToolPolicy::default()
    };
    let agent = AgentPolicy {
        every_tool: ToolPolicy::default(),
        tools: [(name("delete"), plain), (name("files__delete"), long)].into(),
    };
    let policies = Policies {
        agents: [(name("ums"), agent)].into(),
        ..Policies::default()
    };
    let both = policies.of(&name("ums"), "files__delete").policy;
    assert_eq!(both.approval, Some(Approval::Always));
    assert_eq!(both.decide_by, Some(DecideBy::Role(name("boss"))));
    assert_eq!((both.idempotent, both.quorum), (Some(false), Some(2)));
    assert_eq!(both.expires_in_seconds, Some(60));
    assert_eq!(both.redact.map(|paths| paths.len()), Some(2));
    let other = policies.of(&name("ums"), "mail__delete").policy;
    assert_eq!(
        (other.approval, other.quorum),
        (Some(Approval::Always), None)
    );
    let plain = policies.of(&name("ums"), "delete").policy;
    assert_eq!(plain.quorum, None);
}

#[test]
fn people_are_asked_about_calls_without_an_answer_unless_it_is_said_otherwise() {
    let says = |effect, on_no_answer| ToolPolicy {
        effect,
        on_no_answer,
        ..ToolPolicy::default()
    };
    let (read, write) = (Some(Effect::Read), Some(Effect::Write));
    let (ask, tell) = (Some(OnNoAnswer::Ask), Some(OnNoAnswer::Tell));
    let agent = AgentPolicy {
        every_tool: ToolPolicy::default(),
        tools: [
            (name("look"), says(read, None)),
            (name("peek"), says(read, ask)),
            (name("pay"), says(write, ask)),
            (name("files__pay"), says(read, tell)),
            (name("send"), says(write, tell)),
        ]
        .into(),
    };
    let policies = Policies {
        agents: [(name("ums"), agent)].into(),
        ..Policies::default()
    };
    let asks = |tool: &str| policies.of(&name("ums"), tool).asks_without_answer();
    assert!(asks("other"));
    assert!(!asks("look"), "it only looks");
    assert!(asks("peek"), "what is said goes over that");
    assert!(asks("pay") && !asks("send"));
    assert!(asks("files__pay"), "the stricter of both");
    assert!(Effective::default().asks_without_answer());
    assert!(!Effective::default().or_read(true).asks_without_answer());
    let pay = policies.of(&name("ums"), "pay");
    assert!(
        pay.or_read(true).asks_without_answer(),
        "a policy goes over it"
    );
}

#[track_caller]
fn check(wanted: HoldTerms, refused: Option<(&str, &str)>) -> Option<HoldTerms> {
    let effective = policies().of(&name("ums"), "delete");
    match (effective.tighten(HoldKind::Approval, wanted), refused) {
        (Ok(made), None) => Some(made),
        (Err(EngineError::PolicyStricter { field, policy }), Some(expected)) => {
            assert_eq!((field, policy.as_str()), expected);
            None
        }
        (other, expected) => panic!("{other:?}, not {expected:?}"),
    }
}

#[test]
fn what_a_worker_leaves_out_is_the_policys() {
    let made = check(HoldTerms::default(), None).expect("made");
    assert_eq!(made.decide_by, Some(DecideBy::Role(name("boss"))));
    assert_eq!(
        (made.effect, made.risk),
        (Some(Effect::Write), Some(Risk::Medium))
    );
    assert_eq!((made.quorum, made.expires_in_seconds), (Some(2), Some(60)));
    assert_eq!(
        (made.on_expiry, made.idempotent),
        (Some(OnExpiry::Fail), Some(false))
    );
}

#[test]
fn a_worker_may_tighten() {
    let wanted = HoldTerms {
        decide_by: Some(DecideBy::Role(name("boss"))),
        effect: Some(Effect::Destructive),
        risk: Some(Risk::High),
        quorum: Some(3),
        expires_in_seconds: Some(5),
        on_expiry: Some(OnExpiry::Fail),
        idempotent: Some(false),
    };
    let made = check(wanted, None).expect("made");
    assert_eq!(
        (made.effect, made.risk),
        (Some(Effect::Destructive), Some(Risk::High))
    );
    assert_eq!((made.quorum, made.expires_in_seconds), (Some(3), Some(5)));
}

#[test]
fn a_worker_may_not_loosen() {
    let none = HoldTerms::default;
    let role = |text| Some(DecideBy::Role(name(text)));
    check(
        HoldTerms {
            effect: Some(Effect::Read),
            ..none()
        },
        Some(("effect", "write")),
    );
    check(
        HoldTerms {
            risk: Some(Risk::Low),
            ..none()
        },
        Some(("risk", "medium")),
    );
    check(
        HoldTerms {
            quorum: Some(1),
            ..none()
        },
        Some(("quorum", "2")),
    );
    check(
        HoldTerms {
            idempotent: Some(true),
            ..none()
        },
        Some(("idempotent", "false")),
    );
    check(
        HoldTerms {
            expires_in_seconds: Some(61),
            ..none()
        },
        Some(("expires_in_seconds", "60")),
    );
    check(
        HoldTerms {
            on_expiry: Some(OnExpiry::Reject),
            ..none()
        },
        Some(("on_expiry", "fail")),
    );
    check(
        HoldTerms {
            decide_by: role("x"),
            ..none()
        },
        Some(("decide_by", "role:boss")),
    );
    check(
        HoldTerms {
            decide_by: Some(DecideBy::User),
            ..none()
        },
        Some(("decide_by", "role:boss")),
    );
}

#[test]
fn without_a_policy_a_worker_chooses_the_judge_but_not_itself() {
    let free = Effective::default();
    let judge = |kind, decide_by| {
        let wanted = HoldTerms {
            decide_by: Some(decide_by),
            ..HoldTerms::default()
        };
        free.tighten(kind, wanted).map(|made| made.decide_by)
    };
    let role = |text| DecideBy::Role(name(text));
    judge(HoldKind::Approval, DecideBy::User).expect_err("never the user");
    for kind in [HoldKind::Approval, HoldKind::Question] {
        for own in ["client", "worker"] {
            judge(kind, role(own)).expect_err("never its own kind");
        }
        assert_eq!(
            judge(kind, role("boss")).expect("taken"),
            Some(role("boss"))
        );
    }
    assert_eq!(
        judge(HoldKind::Question, DecideBy::User).expect("taken"),
        Some(DecideBy::User)
    );
}

#[test]
fn who_decides_is_read_as_it_is_written() {
    for text in ["other", "user", "role:boss"] {
        let read = parse_decide_by(text).expect("known");
        assert_eq!(decide_by_text(&read), text);
    }
    for text in ["", "everybody", "role:", "role:a b", "Other"] {
        parse_decide_by(text).expect_err(text);
    }
}
