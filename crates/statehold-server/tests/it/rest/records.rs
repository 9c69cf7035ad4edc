use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{new_session, new_session_of, turn};
use crate::rig::{Answer, Rig};

/// Takes the records out of an answer byte for byte, and checks each hash and the chain.
#[track_caller]
pub(crate) fn check_chain(answer: &Answer) -> Vec<Value> {
    #[derive(serde::Deserialize)]
    struct Page<'a> {
        #[serde(borrow)]
        records: Vec<&'a serde_json::value::RawValue>,
    }
    answer.ok(200);
    let page: Page<'_> = serde_json::from_slice(&answer.body).expect("records");
    let mut before: Option<String> = None;
    let mut records = Vec::new();
    for raw in page.records {
        let record: Value = serde_json::from_str(raw.get()).expect("a record");
        let hash = record["hash"].as_str().expect("a hash").to_owned();
        let tail = format!(",\"hash\":\"{hash}\"}}");
        let bytes = raw.get().strip_suffix(&tail).expect("the hash comes last");
        let digest = Sha256::digest(format!("{bytes}}}").as_bytes());
        let hex = data_encoding::HEXLOWER.encode(&digest);
        assert_eq!(hash.trim_start_matches("sha256:"), hex);
        if let Some(before) = before {
            assert_eq!(record["prev_hash"], before.as_str());
        }
        before = Some(hash);
        records.push(record);
    }
    records
}

#[tokio::test]
async fn anyone_who_has_the_records_can_verify_the_chain() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let operator = rig.key(&["operator"]).await;
        let session = new_session_of(&ann, "helper").await;
        for index in 0..5 {
            turn(&helper, &session, "helper", "free text", &index.to_string()).await;
        }
        let path = format!("/v1/sessions/{session}/records");
        let answer = operator.get(&path).await;
        let records = check_chain(&answer);
        assert_eq!(records.len(), 6);
        assert_eq!(answer.ok(200)["revision"], 6);
        for (record, seq) in records.iter().zip(1_u64..) {
            assert_eq!(record["seq"], seq);
            assert_eq!(record["session"], session.as_str());
            assert_eq!(record["v"], 1);
        }
        assert!(
            !answer.text().contains("free text"),
            "records hold no free text"
        );
        let page = operator.get(&format!("{path}?after=2&limit=3")).await;
        let seqs: Vec<u64> = check_chain(&page)
            .iter()
            .filter_map(|record| record["seq"].as_u64())
            .collect();
        assert_eq!(seqs, [3, 4, 5]);
        ann.get(&path).await.refused(403, "forbidden");
        for query in ["limit=0", "limit=1001", "after=-1", "x=1"] {
            operator
                .get(&format!("{path}?{query}"))
                .await
                .refused(400, "bad_query");
        }
        // They outlive the session.
        ann.delete(&format!("/v1/sessions/{session}")).await.ok(204);
        assert_eq!(check_chain(&operator.get(&path).await).len(), 7);
    }
}

#[tokio::test]
async fn trace_reads_and_key_changes_are_in_the_audit_stream() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
        let operator = rig.key(&["operator"]).await;
        let session = new_session(&ann).await;
        let count = || async { check_chain(&operator.get("/v1/audit/records").await).len() };
        let before = count().await;
        let trace = format!("/v1/sessions/{session}/messages?view=trace");
        operator.get(&trace).await.ok(200);
        assert_eq!(count().await, before + 1);
        let made = admin
            .post("/v1/keys", &json!({"roles": ["client"]}))
            .await
            .ok(201);
        admin
            .delete(&format!("/v1/keys/{}", made["id"].as_str().expect("an id")))
            .await
            .ok(204);
        assert_eq!(count().await, before + 3);
        let page = operator.get("/v1/audit/records?limit=2").await;
        assert_eq!(check_chain(&page).len(), 2);
        ann.get("/v1/audit/records").await.refused(403, "forbidden");
    }
}
