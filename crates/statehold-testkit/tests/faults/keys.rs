//! Keys that have expired stay so, whatever the clock says afterwards.

use serde_json::{Value, json};

use super::{World, text};

#[test]
fn a_key_that_had_expired_does_not_come_back_after_a_restart_with_an_earlier_clock() {
    let mut world = World::new();
    let body =
        |seconds: u64| json!({"roles": ["client"], "user": "ann", "expires_in_seconds": seconds});
    let short = text(&world.post("/v1/keys", &body(600)), "key");
    let long = text(&world.post("/v1/keys", &body(86_400)), "key");
    let statuses = |world: &World| {
        [&short, &long].map(|key| {
            let answer = world.call(Some(key), "GET", "/v1/sessions", &Value::Null);
            answer.status
        })
    };
    assert_eq!(statuses(&world), [200, 200]);
    // Moving the clock runs the timers before it is answered.
    world.post("/v1/dev/clock", &json!({"step_seconds": 601}));
    assert_eq!(statuses(&world), [401, 200]);
    for is_killed in [true, false] {
        if is_killed {
            world.kill();
        } else {
            world.stop();
        }
        world.start(0);
        assert_eq!(statuses(&world), [401, 200], "killed: {is_killed}");
    }
    // A key that is made now lives, although the clock had been later than its end.
    let fresh = text(&world.post("/v1/keys", &body(60)), "key");
    let answer = world.call(Some(&fresh), "GET", "/v1/sessions", &Value::Null);
    assert_eq!(answer.status, 200);
    // The audit stream says it once.
    let audit = world.get("/v1/audit/records?limit=200").to_string();
    assert_eq!(audit.matches("key_revoked").count(), 1, "{audit}");
}
