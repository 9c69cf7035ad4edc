//! Items and scoped state in the world of the reference.

use std::collections::BTreeMap;

use statehold_core::command::{Rejection, StatePatch};
use statehold_core::hold::CallTarget;
use statehold_core::ids::ItemId;
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, NewItem, Role, Visibility};
use statehold_core::limits;
use statehold_core::request::CallState;
use statehold_core::scope::{MergePolicy, Scope, StateKey};
use statehold_core::session::KeyVersion;
use uuid::Uuid;

use super::{KeyWrite, KnownItem, KnownMark, World};

impl World {
    /// Writes the input of a request. Clients see that of the request which it continues.
    pub(super) fn write_input(&mut self, request: usize) {
        let visibility = match self.requests[request].continues {
            Some(_) => Visibility::Hidden,
            None => Visibility::Visible,
        };
        let role = Some(Role::User);
        self.write_item(request, ItemKind::Message, visibility, role, None);
    }

    pub(super) fn write_message(&mut self, request: usize, role: Role) {
        self.write_item(
            request,
            ItemKind::Message,
            Visibility::Visible,
            Some(role),
            None,
        );
    }

    pub(super) fn write_item(
        &mut self,
        request: usize,
        kind: ItemKind,
        visibility: Visibility,
        role: Option<Role>,
        mark: Option<KnownMark>,
    ) {
        let is_root = self.task_above(self.requests[request].task).is_none();
        let visibility = if is_root {
            visibility
        } else {
            Visibility::Hidden
        };
        let revision = self.revision;
        self.items.push(KnownItem {
            id: None,
            request,
            revision,
            kind,
            visibility,
            role,
            mark,
        });
    }

    pub(super) fn write_items(
        &mut self,
        request: usize,
        items: &[NewItem],
    ) -> Result<(), Rejection> {
        let first = self.items.len();
        for item in items {
            let is_tool = matches!(item.kind, ItemKind::ToolCall | ItemKind::ToolResult);
            let speaks = matches!(item.role, Some(Role::User | Role::Assistant));
            let mark = match (item.kind, item.call) {
                (ItemKind::Message | ItemKind::Step | ItemKind::Note, None) => None,
                (ItemKind::ToolCall, Some(NewCallMark::Call { idempotent, gated })) => {
                    Some(KnownMark::Call { idempotent, gated })
                }
                (ItemKind::ToolResult, Some(NewCallMark::Result { call, outcome })) => {
                    check_shape(item, is_tool, speaks)?;
                    Some(self.result_of(request, call, outcome, first)?)
                }
                _ => return Err(Rejection::ItemMalformed("the mark does not fit the kind")),
            };
            check_shape(item, is_tool, speaks)?;
            self.write_item(request, item.kind, item.visibility, item.role, mark);
        }
        Ok(())
    }

    pub(super) fn call_meant(
        &self,
        request: usize,
        target: CallTarget,
        first: usize,
    ) -> Result<usize, Rejection> {
        let (named, item) = match target {
            CallTarget::Recorded(id) => (Some(id), self.item_named(id)),
            CallTarget::SameCommand(index) => (None, Some(first + index)),
        };
        item.filter(|item| self.open_calls(request).contains(item))
            .ok_or(Rejection::CallUnknown { call: named })
    }

    /// A result must fit the decision about the call: only an approved call can have run.
    fn result_of(
        &self,
        request: usize,
        target: CallTarget,
        outcome: CallOutcome,
        first: usize,
    ) -> Result<KnownMark, Rejection> {
        let call = self.call_meant(request, target, first)?;
        let fitting = match self.call_state(call) {
            CallState::Started { .. } | CallState::Confirmed => Some(CallOutcome::Ran),
            CallState::Refused => Some(CallOutcome::Refused),
            CallState::Answered => Some(CallOutcome::Answered),
            CallState::Proposed | CallState::Released | CallState::Unknown { .. } => None,
        };
        if fitting != Some(outcome) {
            // A call of this same command has no id yet; only the class of the refusal counts then.
            let unnamed = ItemId::from_uuid(Uuid::nil());
            return Err(Rejection::CallNotReleased {
                call: self.items[call].id.unwrap_or(unnamed),
            });
        }
        let ran = outcome == CallOutcome::Ran;
        let executed = self.approved_digest(call).filter(|_| ran);
        Ok(KnownMark::Result {
            call,
            outcome,
            executed,
        })
    }

    pub(super) fn write_key(&mut self, key: &StateKey, bytes: Option<u32>) {
        let (key, revision) = (key.clone(), self.revision);
        self.writes.push(KeyWrite {
            key,
            revision,
            bytes,
        });
    }

    pub(super) fn write_state(&mut self, patch: &StatePatch) -> Result<(), Rejection> {
        let written: Vec<&StateKey> = patch
            .set
            .iter()
            .map(|set| &set.key)
            .chain(&patch.delete)
            .collect();
        for (at, key) in written.iter().enumerate() {
            if key.scope() == Scope::Temp {
                return Err(Rejection::TempKey {
                    key: (*key).clone(),
                });
            }
            if written[..at].contains(key) {
                return Err(Rejection::DuplicateKey {
                    key: (*key).clone(),
                });
            }
        }
        let now = self.keys_at(self.revision);
        for (key, expected) in &patch.if_versions {
            let (key, expected) = (key.clone(), *expected);
            match key.scope() {
                Scope::Temp => return Err(Rejection::TempKey { key }),
                Scope::App | Scope::User if !written.contains(&&key) => {
                    return Err(Rejection::VersionWithoutWrite { key });
                }
                Scope::App | Scope::User => {}
                Scope::Session => {
                    let found = now.get(&key).map_or(0, |known| known.revision);
                    if found != expected {
                        return Err(Rejection::VersionConflict {
                            key,
                            expected,
                            found,
                        });
                    }
                }
            }
        }
        for prefix in &patch.delete_prefix {
            for key in now
                .keys()
                .filter(|key| key.as_str().starts_with(prefix.as_str()))
            {
                self.write_key(key, None);
            }
        }
        for set in patch
            .set
            .iter()
            .filter(|set| set.key.scope() == Scope::Session)
        {
            if set.merge != MergePolicy::Replace {
                return Err(Rejection::MergeOfSessionKey {
                    key: set.key.clone(),
                });
            }
            self.write_key(&set.key, Some(set.value.bytes));
        }
        for key in patch
            .delete
            .iter()
            .filter(|key| key.scope() == Scope::Session)
        {
            self.write_key(key, None);
        }
        for (at, list) in patch.append.iter().enumerate() {
            let key_of = |index| list.list.element(self.revision, index);
            let is_twice = patch.append[..at]
                .iter()
                .any(|other| other.list == list.list);
            let keys: Vec<StateKey> = (0..list.values.len()).map(key_of).collect();
            let taken = self.keys_at(self.revision);
            for (key, value) in keys.into_iter().zip(&list.values) {
                if is_twice || taken.contains_key(&key) {
                    return Err(Rejection::DuplicateKey { key });
                }
                self.write_key(&key, Some(value.bytes));
            }
        }
        let bytes_of = |keys: &BTreeMap<StateKey, KeyVersion>| -> u64 {
            keys.values().map(|known| u64::from(known.bytes)).sum()
        };
        let (before, bytes) = (bytes_of(&now), bytes_of(&self.keys_at(self.revision)));
        let max = limits::SESSION_STATE_BYTES_MAX;
        if bytes > max && bytes > before {
            return Err(Rejection::StateTooLarge { bytes, max });
        }
        Ok(())
    }
}

fn check_shape(item: &NewItem, is_tool: bool, speaks: bool) -> Result<(), Rejection> {
    let has_right_role = if item.kind == ItemKind::Message {
        speaks
    } else {
        item.role.is_none()
    };
    if !has_right_role {
        return Err(Rejection::ItemMalformed("the role does not fit the kind"));
    }
    if is_tool && item.visibility == Visibility::Visible {
        return Err(Rejection::ItemMalformed("tool items are hidden"));
    }
    Ok(())
}
