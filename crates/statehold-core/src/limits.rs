//! Every limit of the core in one table. Each is refused before anything is written, by name.

/// Longest name of an app, an agent, a tool, a role or a tenant, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest state key, prefix included, in bytes.
pub const STATE_KEY_BYTES_MAX: usize = 512;
/// Keys that one session may hold.
pub const SESSION_KEYS_MAX: usize = 10_000;
/// Longest state of one session, all values together, in bytes. Forks copy it, and rewinds and deletions write as much,
/// while other sessions wait.
pub const SESSION_STATE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Open tasks in one session.
pub const OPEN_TASKS_MAX: usize = 4_096;
/// Agent paths with a memory, or with a live request that may get one, in one session.
pub const AGENT_PATHS_MAX: usize = 1_024;
/// Open holds in one session.
pub const OPEN_HOLDS_MAX: usize = 2_048;
/// Open holds of one request.
pub const REQUEST_HOLDS_MAX: usize = 256;
/// Holds that one request ever opens. Reading a request reads all of its holds.
pub const REQUEST_HOLDS_OPENED_MAX: usize = 4_096;
/// Tool calls of one request without a result. Each may become a hold after a crash.
pub const REQUEST_CALLS_MAX: usize = REQUEST_HOLDS_MAX;
/// Live child requests of one request.
pub const LIVE_CHILDREN_MAX: usize = 1_024;
/// How deep agents may call agents. A tree nests four levels of JSON for each, and common readers of
/// JSON stop at 128.
pub const DEPTH_MAX: u16 = 24;
/// Items in one command.
pub const COMMAND_ITEMS_MAX: usize = 1_024;
/// Attachments of one item.
pub const ITEM_ATTACHMENTS_MAX: usize = 64;
/// State keys in one command.
pub const COMMAND_KEYS_MAX: usize = 1_024;
/// Bytes of the keys that one command removes by their prefix: its record names each of them.
pub const REMOVED_KEY_BYTES_MAX: usize = 1024 * 1024;
/// Longest payload of one item, value or hold, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 64 * 1024 * 1024;
/// Elements of a list, or members of an object with those of the objects in it, that a merge may leave.
pub const MERGED_ELEMENTS_MAX: usize = 100_000;
/// Values of each side of a merge, counted before it is parsed: in memory a value takes many times its bytes.
pub const MERGE_SIDE_VALUES_MAX: usize = 4 * MERGED_ELEMENTS_MAX;
/// JSON values in the body of one call: every text, number, literal, list and object counts as one. In memory a value
/// takes many times its bytes. A list as long as a merge may leave fits, and so does a long conversation.
pub const BODY_VALUES_MAX: usize = 250_000;
/// JSON values in one message of MCP, whose library reads a message more than once, while calls wait.
pub const MCP_VALUES_MAX: usize = 50_000;
/// Longest value that a merge may leave, as compact JSON, in bytes. A merge costs the whole value, however
/// little is added, so this is lower than the limit of a plain write.
pub const MERGED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes that one command merges: the values that it brings, and those that are stored under their keys. Each merge
/// reads, parses and writes its whole value.
pub const COMMAND_MERGE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Approvals that one hold may need.
pub const QUORUM_MAX: u16 = 32;
/// Longest time a hold may wait: ten years.
pub const HOLD_MS_MAX: u64 = 10 * 366 * 24 * 3_600 * 1_000;
/// Largest integer in a record: every reader of JSON holds it exactly.
pub const EXACT_INTEGER_MAX: u64 = (1 << 53) - 1;
/// Shortest and longest life of a session: a second, ten years.
pub const SESSION_TTL_MS: std::ops::RangeInclusive<u64> = 1_000..=10 * 366 * 24 * 3_600 * 1_000;
/// Shortest and longest lease.
pub const LEASE_MS: std::ops::RangeInclusive<u64> = 1_000..=24 * 3_600 * 1_000;
