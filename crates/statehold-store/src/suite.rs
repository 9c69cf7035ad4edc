//! The conformance suite: what every adapter promises, one named check per promise.
//!
//! A check gets a fresh store and panics if the promise is not kept. An adapter runs all of them with
//! [`run`], or gets a test per promise from [`conformance_tests`](crate::conformance_tests). The
//! [`driver`] that the checks use is public, because other test tools drive stores in the same way.
//! The suite starts no runtime: a store must not need one.

#![expect(
    clippy::missing_panics_doc,
    reason = "a panic is how the suite says that a promise is not kept"
)]

pub mod driver;
pub mod fixture;
pub mod picture;
pub mod story;
mod words;

mod answers;
mod commits;
mod erasure;
mod feed;
mod forks;
mod history;
mod inbox;
mod life;
mod lists;
mod log;
mod lookups;
mod memories;
mod names;
mod parallel;
mod past;
mod roots;
mod shared;
mod state;
mod tenants;
mod work;

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use crate::Store;

/// A fresh store for one check.
pub struct Fresh {
    store: Arc<dyn Store>,
    /// What must live as long as the store, such as its directory.
    _kept: Box<dyn Any>,
}

impl<S: Store> From<S> for Fresh {
    fn from(store: S) -> Self {
        (store, ()).into()
    }
}

impl<S: Store, K: Any> From<(S, K)> for Fresh {
    fn from((store, kept): (S, K)) -> Self {
        Self {
            store: Arc::new(store),
            _kept: Box::new(kept),
        }
    }
}

/// One promise: its name and its check.
#[derive(Clone, Copy)]
pub struct Promise {
    /// What is promised.
    pub name: &'static str,
    /// Panics if it is not kept.
    pub check: fn(Arc<dyn Store>) -> Checking,
}

/// A check under way. It may use its thread as it likes.
pub type Checking = Pin<Box<dyn Future<Output = ()>>>;

/// Lists the promises once, for [`promises`] and for the tests of the adapters.
macro_rules! promises {
    ($d:tt $($subject:ident { $($name:ident,)* })*) => {
        /// All promises, by subject.
        pub fn promises() -> Vec<Promise> {
            vec![$($(Promise {
                name: stringify!($name),
                check: |store| Box::pin($subject::$name(store)),
            },)*)*]
        }

        /// Makes one test per promise. The argument is an async closure without parameters that
        /// makes a store, or a store with what must live as long.
        #[macro_export]
        macro_rules! conformance_tests {
            ($d make:expr) => {
                $($(
                    #[test]
                    fn $name() {
                        $crate::suite::check(stringify!($name), $d make);
                    }
                )*)*
            };
        }
    };
}

promises! {
    $
    commits {
        load_equals_the_fold_after_every_command,
        every_answer_is_that_of_the_reference,
        a_stale_commit_is_refused_and_leaves_nothing,
        a_commit_ahead_of_its_session_is_refused,
        a_record_that_does_not_continue_the_head_is_refused,
        of_two_commits_on_one_revision_one_is_taken,
        a_session_begins_once,
        a_stranger_has_nothing,
    }
    log {
        a_commit_is_read_back_whole,
        the_chain_verifies_from_the_first_record,
        records_come_in_pages_of_any_size,
        every_page_is_bounded_in_bytes,
        payloads_of_every_kind_and_length_come_back,
        the_same_long_payload_may_come_again,
    }
    names {
        a_name_is_taken_once_by_a_user_of_an_app,
        a_name_is_free_for_other_users_apps_and_tenants,
        a_name_stays_taken_when_its_session_closes,
        a_session_is_found_by_its_name,
    }
    answers {
        an_answer_is_kept_with_its_commit,
        a_key_is_used_once,
        a_refused_commit_keeps_no_answer,
        expired_answers_are_forgotten,
        no_more_answers_are_forgotten_than_asked,
    }
    shared {
        versions_of_a_shared_key_count_from_one,
        another_version_than_expected_refuses_the_whole_commit,
        merged_values_are_stored,
        a_shared_value_has_the_bytes_that_a_write_or_a_merge_left,
        a_value_merged_with_an_older_version_refuses_the_whole_commit,
        a_merge_without_its_value_refuses_the_whole_commit,
        one_key_is_read_as_it_is_among_all,
        sizes_of_values_are_known_without_their_bytes,
        a_shared_value_says_who_wrote_it,
        user_values_reach_the_sessions_of_that_user_only,
        app_values_reach_the_users_of_that_app_only,
        a_removed_key_is_gone_and_its_versions_do_not_return,
        one_commit_may_write_many_shared_keys,
    }
    state {
        session_values_have_the_revision_that_wrote_them,
        removed_values_are_gone,
        ranges_of_keys_are_read_from_both_ends,
        earlier_values_are_found_at_every_revision,
        a_rewind_restores_values,
        a_restored_value_may_be_restored_again,
        task_state_is_the_last_one_written,
    }
    history {
        items_come_newest_first_with_their_content,
        pages_of_items_have_no_gaps_and_no_repeats,
        pages_of_one_task_have_its_items_only,
        pages_of_a_task_are_found_over_many_records_of_others,
        the_transcript_is_what_clients_see_in_whole_pages,
        items_know_whether_their_task_is_a_root,
        rewound_items_are_marked_and_kept,
    }
    memories {
        a_memory_has_the_exchanges_of_its_path_newest_first,
        a_memory_stays_what_it_was_when_its_request_started,
        pages_of_a_memory_are_bounded_in_exchanges_and_bytes,
        a_failed_exchange_is_in_a_memory_if_a_tool_ran,
        a_memory_gives_back_the_last_private_state_of_a_completed_exchange,
        a_rewind_takes_exchanges_out_of_a_memory_for_good,
        a_fork_has_the_memories_of_that_time,
        one_record_may_end_exchanges_of_several_paths,
    }
    lookups {
        ended_requests_are_found,
        closed_tasks_are_found,
        decided_holds_are_found_with_their_votes,
        everything_knows_its_session,
        a_request_knows_the_holds_that_it_opened,
        a_request_knows_the_requests_that_it_started,
        chat_requests_are_found_by_their_digest_newest_first,
        a_session_is_found_by_its_newest_chat_requests_only,
        no_chat_request_of_an_erased_session_is_found,
    }
    lists {
        sessions_are_listed_newest_first_in_pages,
        sessions_are_listed_by_tenant_and_owner,
        a_listed_session_says_what_it_is,
        sessions_are_listed_by_their_last_change_in_pages,
        a_session_that_changes_between_pages_moves_to_the_first,
        forks_rewinds_and_ends_count_as_changes,
        the_order_of_changes_stays_right_over_many_commits,
        many_sessions_are_in_the_order_of_their_changes,
    }
    inbox {
        open_holds_are_listed_in_every_order_in_pages,
        a_page_misses_and_repeats_nothing_while_holds_are_decided,
        a_hold_keeps_its_place_until_it_is_decided,
        holds_are_narrowed_to_a_user_and_a_session,
        open_holds_of_a_user_are_counted,
        decided_holds_are_listed_in_the_order_of_decisions,
        a_listed_hold_says_whose_it_is_and_what_came_of_it,
        what_happens_to_holds_is_found_in_order,
        a_request_knows_the_way_down_to_it,
        single_records_are_read_as_they_stand_in_the_chain,
    }
    life {
        a_patch_changes_what_it_names_and_nothing_else,
        a_session_is_renamed_only_to_a_name_that_is_free,
        the_name_of_a_deleted_session_is_free,
        a_sliding_life_moves_with_every_commit_and_a_fixed_one_stays,
        sessions_are_due_when_their_life_ends,
        sessions_are_due_when_the_life_of_their_hidden_payloads_ends,
        an_expired_session_is_listed_and_a_deleted_one_is_not,
        sessions_that_only_carry_shared_state_are_not_listed,
    }
    erasure {
        expiry_removes_hidden_payloads_and_keeps_their_digests,
        deletion_removes_every_payload_with_name_labels_and_state,
        an_expired_session_can_be_deleted,
        hidden_payloads_of_a_session_that_goes_on_are_removed_again_and_again,
        an_erasure_goes_back_to_the_one_before_it_and_no_further,
        hidden_payloads_go_when_no_session_that_shares_them_needs_them,
        hidden_payloads_that_a_fork_removed_stay_with_its_origin,
        a_fork_begins_without_what_was_removed_from_its_origin,
        a_fork_of_a_fork_has_nothing_that_either_of_them_removed,
        a_fork_keeps_what_its_origin_removes_after_it_and_no_more,
        a_session_without_its_hidden_payloads_can_be_deleted,
        payloads_are_removed_in_small_steps,
        a_living_fork_keeps_the_payloads_that_it_shares,
        a_deleted_fork_leaves_its_origin_alone,
        a_fork_of_a_fork_keeps_what_both_origins_removed,
        a_deleted_fork_lets_an_expired_origin_go_on,
        a_fork_has_nothing_that_was_removed_before,
        a_deleted_session_cannot_be_forked,
        a_long_payload_stays_as_long_as_a_session_has_it,
        an_answer_that_was_passed_on_outlives_the_hidden_one,
        a_fork_between_an_answer_and_its_passing_on_keeps_what_it_shares,
        no_reader_finds_a_shared_payload_that_was_removed,
    }
    feed {
        commits_have_places_in_the_order_of_arrival,
        the_feed_has_no_gaps_while_many_commit,
        commits_of_a_session_may_wait_in_line,
        commits_behind_a_refused_one_are_refused,
        a_commit_in_line_is_written_also_if_nobody_waits,
    }
    tenants {
        a_user_has_one_pseudonym,
        a_new_user_is_stored_with_the_commit_of_their_session,
        a_forgotten_user_is_new_again,
        sessions_of_a_user_are_found_listed_or_not,
        of_many_who_ask_for_a_pseudonym_all_get_one,
        the_audit_stream_of_a_tenant_is_a_chain,
        an_entry_that_does_not_follow_is_refused_with_its_key,
        of_many_entries_after_one_head_one_is_taken,
        keys_are_found_by_their_digest,
        an_agent_has_one_address_until_it_is_removed,
    }
    roots {
        heads_after_a_place_are_the_newest_of_what_changed,
        tenants_are_those_with_sessions_or_a_stream,
        a_sound_store_verifies_with_its_roots,
        what_a_root_names_and_is_not_there_is_missed,
        a_root_that_this_server_did_not_sign_is_noticed,
        a_root_of_a_key_that_is_gone_counts_apart,
        a_stream_without_what_was_written_to_it_is_noticed,
    }
    work {
        claimable_requests_come_oldest_first,
        only_queued_requests_of_the_agent_are_claimable,
        open_holds_and_queued_requests_are_counted,
        live_work_of_an_agent_comes_in_pages,
        leases_and_deadlines_are_due_in_order,
        deadlines_come_in_pages_that_have_each_of_them_once,
        only_running_leases_and_open_holds_are_due,
    }
    past {
        every_revision_can_be_loaded,
        revisions_that_never_were_cannot_be_loaded,
        a_rewind_is_one_more_record,
        a_long_session_is_read_at_every_place,
    }
    forks {
        a_fork_shares_the_history_of_its_origin,
        a_fork_and_its_origin_go_on_apart,
        a_fork_leaves_what_is_in_flight_with_its_origin,
        the_tasks_of_a_fork_keep_their_history,
        the_tasks_of_a_fork_keep_the_state_of_that_time,
        a_fork_has_the_values_of_that_time,
        a_fork_of_a_fork_reads_through_both,
        forks_of_forks_end_at_a_limit,
        a_fork_sees_the_rewinds_before_it_only,
        a_fork_is_listed_without_the_name_of_its_origin,
        a_fork_begins_once_and_from_a_revision_that_was,
        a_closed_session_can_be_forked,
    }
    parallel {
        many_sessions_add_to_one_counter_exactly,
        many_sessions_stay_dense_under_interleaved_commits,
        of_many_commits_on_one_revision_one_is_taken,
        of_many_sessions_with_one_name_one_begins,
        of_many_commits_with_one_key_one_is_taken,
        readers_see_whole_commits_only,
    }
}

/// Checks every promise, each on a store of its own.
///
/// # Panics
///
/// At the end, with the names of the promises that are not kept.
pub async fn run<F, R>(make: F)
where
    F: AsyncFn() -> R,
    R: Into<Fresh>,
{
    let mut broken = Vec::new();
    for promise in promises() {
        let fresh: Fresh = make().await.into();
        if let Err(cause) = keeps(promise, &fresh).await {
            broken.push(format!("{}: {cause}", promise.name));
        }
    }
    assert!(
        broken.is_empty(),
        "promises that are not kept:\n{}",
        broken.join("\n")
    );
}

/// Checks one promise, by name, on this thread.
///
/// # Panics
///
/// If it is not kept, or if there is no such promise.
pub fn check<F, R>(name: &str, make: F)
where
    F: AsyncFn() -> R,
    R: Into<Fresh>,
{
    let named = promises().into_iter().find(|promise| promise.name == name);
    let promise = named.expect("a promise of the suite");
    driver::block_on(async {
        let fresh: Fresh = make().await.into();
        (promise.check)(Arc::clone(&fresh.store)).await;
    });
}

/// Runs a check; a panic becomes an error with its message.
async fn keeps(promise: Promise, fresh: &Fresh) -> Result<(), String> {
    let mut check = (promise.check)(Arc::clone(&fresh.store));
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| check.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Err(cause) => Poll::Ready(Err(message(&*cause))),
        },
    )
    .await
}

fn message(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| cause.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

const HEALTHY: &str = "the store answers";
