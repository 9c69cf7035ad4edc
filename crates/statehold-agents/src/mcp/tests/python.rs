//! A third-party server. `scripts/test-tools` installs it.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use futures_util::future::join_all;
use serde_json::json;
use tokio::process::{Child, Command};

use super::bench::at;
use super::*;

fn python() -> String {
    std::env::var("TOOLS_PYTHON").expect("run this with scripts/test-tools")
}

fn script() -> String {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let script = here.join("../../scripts/tool_server.py");
    script.to_str().expect("a path in UTF-8").to_owned()
}

/// Starts the server and waits until its port is open.
async fn serve(address: SocketAddr) -> Child {
    let child = Command::new(python())
        .args([script(), address.port().to_string()])
        .kill_on_drop(true)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("python starts");
    until("the port is open", || async move {
        let stream = tokio::net::TcpStream::connect(address).await;
        // A socket may connect to itself while the port has no listener.
        stream.is_ok_and(|stream| stream.local_addr().ok() != Some(address))
    })
    .await;
    child
}

/// Each question of a call goes to the person behind that call.
async fn ask_people(servers: &ToolServers, book: &McpTool, calls_at_once: u64) {
    let bookings = (1..=calls_at_once).map(|nights| async move {
        let person = Person(move |question: ToolQuestion| {
            assert_eq!(question.message, format!("Where, for {nights} nights?"));
            let QuestionForm::Fields(schema) = question.form else {
                panic!("{:?}", question.form);
            };
            assert_eq!(schema["required"], json!(["place"]));
            ToolAnswer::Accept(Some(json!({"place": format!("place {nights}")})))
        });
        let booked = call_with(servers, book, json!({"nights": nights}), &person).await;
        let booked = booked.expect("a reply").for_model();
        assert_eq!(booked, format!("{nights} place {nights}"));
    });
    join_all(bookings).await;
    let declined = Person(|_| ToolAnswer::Decline);
    let said = call_with(servers, book, json!({"nights": 9}), &declined).await;
    assert_eq!(said.expect("a reply").for_model(), "9 decline");
}

async fn use_its_tools(servers: &ToolServers, calls_at_once: u64) {
    let find = |wanted: &'static str| tool(servers, "python", wanted);
    let add = find("add").await;
    assert_eq!(add.description.as_deref(), Some("Adds two numbers."));
    assert_eq!(add.input_schema["required"], json!(["a", "b"]));

    let sum = call(servers, &add, json!({"a": 1, "b": 2})).await;
    let sum = sum.expect("a reply");
    assert_eq!(sum.content["structured"], json!({"result": 3}));
    assert_eq!(sum.for_model(), "3");

    let wrong = call(servers, &add, json!({"a": "x"})).await;
    assert!(wrong.expect("a reply").is_error);

    let meta = call(servers, &find("meta").await, nothing()).await;
    let meta = meta.expect("a reply").for_model();
    assert!(
        meta.contains(r#""statehold/execution_key": "key_1""#),
        "{meta}"
    );

    let meet = find("meet").await;
    let meetings = (0..4).map(|_| call(servers, &meet, json!({"others": 4})));
    for reply in join_all(meetings).await {
        assert_eq!(reply.expect("a reply").for_model(), "met");
    }

    ask_people(servers, &find("book").await, calls_at_once).await;

    let fail = find("fail").await;
    let failed = call(servers, &fail, nothing()).await.expect("a reply");
    assert!(failed.is_error);

    let retired = call(servers, &find("retire").await, nothing()).await;
    assert_eq!(retired.expect("a reply").for_model(), "done");
    until("the tool is gone", || async {
        let tools = servers.tools(&[name("python")]).await.all().expect("tools");
        tools.iter().all(|tool| tool.name != "fail")
    })
    .await;
    match call(servers, &fail, nothing()).await {
        Ok(reply) => assert!(reply.is_error),
        Err(error) => assert_eq!(error.code(), "tool_unknown"),
    }

    let left = call(servers, &find("leave").await, nothing()).await;
    let left = left.expect_err("an error");
    assert!(left.may_have_run(), "{left}");
}

#[tokio::test]
#[ignore = "it needs the Python package for MCP; see scripts/test-tools"]
async fn its_tools_are_used_as_a_program() {
    let command = ToolTransport::Command {
        program: python(),
        arguments: vec![script()],
        environment: Vec::new(),
        mark: None,
    };
    let servers = servers([("python", command)]);
    // Over a pipe, nothing says which of several calls a question belongs to.
    use_its_tools(&servers, 1).await;

    let add = tool(&servers, "python", "add").await;
    let sum = call(&servers, &add, json!({"a": 2, "b": 2})).await;
    assert_eq!(sum.expect("a reply").for_model(), "4");
    servers.close().await;
}

#[tokio::test]
#[ignore = "it needs the Python package for MCP; see scripts/test-tools"]
async fn its_tools_are_used_over_http() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let mut server = serve(address).await;
    let servers = servers([("python", at(address, None))]);
    use_its_tools(&servers, 16).await;

    // The server has stopped. Its port may stay open for a moment longer than its connections.
    server.wait().await.expect("it has ended");
    let _server = serve(address).await;
    let add = tool(&servers, "python", "add").await;
    let sum = call(&servers, &add, json!({"a": 2, "b": 2})).await;
    assert_eq!(sum.expect("a reply").for_model(), "4");
    servers.close().await;
}
