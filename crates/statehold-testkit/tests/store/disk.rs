//! A full disk: what does not fit leaves nothing, what was acknowledged stays, reads go on.

use std::sync::Arc;

use statehold_core::command::Command;
use statehold_model::fixtures;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_store::{PageLimit, Store, StoreError};
use statehold_testkit::workload::{Client, ClientError};

use crate::scene::{
    Author, Ids, Picture, data_file, directory, fill, open, options, require_clean, wait,
};

/// A store that takes `more` pages than the directory has now.
fn open_small(directory: &std::path::Path, more: u32) -> SqliteStore {
    let bytes = std::fs::metadata(data_file(directory)).map_or(0, |file| file.len());
    let pages = u32::try_from(bytes / 4096).expect("a small file") + more;
    let options = SqliteOptions {
        pages_max: Some(pages),
        ..options()
    };
    SqliteStore::open(directory, options).expect("the data is fine")
}

fn is_full(error: &ClientError) -> bool {
    matches!(error, ClientError::Store(StoreError::Full))
}

/// Sends turns until one does not fit, and says how many did.
async fn turns_until_full(store: &SqliteStore, client: &mut Client) -> u64 {
    for sent in 0..1_000 {
        let turn = client.turn();
        match client.send(store, &turn, fixtures::worker(1)).await {
            Ok(_) => {}
            Err(error) if is_full(&error) => return sent,
            Err(other) => panic!("not full, but {other:?}"),
        }
    }
    panic!("the store is never full");
}

#[test]
fn what_does_not_fit_leaves_nothing_and_reads_go_on() {
    let directory = directory();
    let store = open(directory.path());
    wait(fill(&store));
    drop(store);
    let ids = Ids::of(directory.path());
    let store = open_small(directory.path(), 12);
    let mut author = Author::new(0);
    let state = wait(store.load(author.session())).expect("reads");
    author.client.state = state.expect("it was filled");
    let sent = wait(turns_until_full(&store, &mut author.client));
    assert!(sent > 0, "nothing fits at all");
    let before = wait(Picture::of(&store, &ids)).expect("reads go on");
    for _ in 0..5 {
        assert_eq!(wait(turns_until_full(&store, &mut author.client)), 0);
    }
    let after = wait(Picture::of(&store, &ids)).expect("reads go on");
    assert!(before == after, "something of a refused commit is there");
    drop(store);
    require_clean(directory.path());
    let store = open_small(directory.path(), 0);
    assert_eq!(wait(turns_until_full(&store, &mut author.client)), 0);
    drop(store);
    let store = open(directory.path());
    let reopened = wait(Picture::of(&store, &ids)).expect("reads");
    assert!(reopened == before, "closing changed something");
    for _ in 0..20 {
        wait(author.turn(&store));
    }
    drop(store);
    require_clean(directory.path());
    println!("{sent} turns fit");
}

#[test]
fn a_smaller_commit_still_fits_where_a_larger_one_does_not() {
    let directory = directory();
    drop(open(directory.path()));
    let store = open_small(directory.path(), 8);
    let mut author = wait(Author::begin(&store, 0));
    wait(turns_until_full(&store, &mut author.client));
    let mut small = 0;
    loop {
        let put = author.putting("n", &small.to_string());
        let put = author
            .prepare(&put, fixtures::client(), None)
            .expect("allowed");
        let after = put.after.clone();
        match wait(store.commit(put)) {
            Ok(revision) => assert_eq!(revision, after.revision),
            Err(StoreError::Full) => break,
            Err(other) => panic!("not full, but {other:?}"),
        }
        author.client.state = after;
        small += 1;
    }
    let state = wait(store.load(author.session())).expect("reads go on");
    assert_eq!(state.as_ref(), Some(&author.client.state));
    drop(store);
    require_clean(directory.path());
    println!("{small} small commits after the first that did not fit");
}

#[test]
fn of_many_writers_each_is_told_the_truth_when_the_disk_fills() {
    const WRITERS: u64 = 8;
    let directory = directory();
    drop(open(directory.path()));
    let store = Arc::new(open_small(directory.path(), 120));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    let begin = |n| Author::begin(&store, n);
    let mut authors = Vec::new();
    for n in 0..WRITERS {
        authors.push(runtime.block_on(begin(n)));
    }
    let writers: Vec<_> = authors
        .into_iter()
        .map(|mut author| {
            let store = Arc::clone(&store);
            runtime.spawn(async move {
                let (mut taken, mut refused) = (Vec::new(), 0);
                while refused < 3 {
                    let turn = author.client.turn();
                    let commit = author.client.prepare(&turn, fixtures::worker(1));
                    let commit = commit.expect("the workload is never refused");
                    let (after, hash) = (commit.after.clone(), commit.record.hash);
                    match store.commit(commit).await {
                        Ok(revision) => taken.push((revision, hash)),
                        Err(StoreError::Full) => {
                            refused += 1;
                            continue;
                        }
                        Err(other) => panic!("not full, but {other:?}"),
                    }
                    author.client.state = after;
                }
                (author, taken)
            })
        })
        .collect();
    let mut all = 0;
    for writer in writers {
        let (mut author, taken) = runtime.block_on(writer).expect("no panic");
        let records = wait(store.records(author.session(), 1, PageLimit::entries(1_000)))
            .expect("reads go on");
        let found: Vec<_> = records
            .iter()
            .map(|stored| (stored.record.content.seq, stored.record.hash))
            .collect();
        assert_eq!(found, taken, "every Ok is there, and nothing else");
        let state = wait(store.load(author.session())).expect("reads go on");
        assert_eq!(state.as_ref(), Some(&author.client.state));
        let close = Command::CloseSession { cancel_live: false };
        let close = author.prepare(&close, fixtures::client(), None);
        assert!(close.is_ok(), "no request was left running");
        all += taken.len();
    }
    drop(store);
    let report = require_clean(directory.path());
    assert_eq!(report.records, all + usize::try_from(WRITERS).expect("few"));
    let store = open(directory.path());
    let mut more = wait(Author::begin(&store, WRITERS));
    wait(more.turn(&store));
    assert!(all > 20, "only {all} commits");
    println!("{all} commits of {WRITERS} writers fit");
}
