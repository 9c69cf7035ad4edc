//! Ending tasks.

use super::draft::Draft;
use crate::command::Rejection;
use crate::ids::TaskId;
use crate::task::TaskStatus;

pub(super) fn close(draft: &mut Draft<'_>, task: TaskId) -> Result<(), Rejection> {
    draft.open_task(task)?;
    for below in draft.subtree_deepest_first(task) {
        if let Some(request) = draft.open_task(below)?.live {
            return Err(Rejection::TaskBusy {
                task: below,
                request,
            });
        }
    }
    draft.close_subtree(task, TaskStatus::Completed);
    Ok(())
}

pub(super) fn cancel(draft: &mut Draft<'_>, task: TaskId) -> Result<(), Rejection> {
    draft.open_task(task)?;
    // The task's own request first: it takes the requests it waits for with it, in order.
    for below in draft.subtree_deepest_first(task).into_iter().rev() {
        if let Some(request) = draft.state.tasks.get(&below).and_then(|task| task.live) {
            draft.cancel_request_tree(request);
        }
    }
    // `close_on` may have closed the task when its request ended.
    if draft.state.tasks.contains_key(&task) {
        draft.close_subtree(task, TaskStatus::Cancelled);
    }
    Ok(())
}
