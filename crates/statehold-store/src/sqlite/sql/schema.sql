-- Layout 6. Plain tables with rowids and ordinary indexes, so that libSQL and Turso read it.
-- The log is written in the order of arrival: a commit touches its tail and a few small rows, never
-- the middle of a long history. Each log row names the row before it of the same session, and, in
-- `links`, the row before it of each task whose history it adds to, and, in `exchanges`, where the memories
-- of agents go on backwards. Waypoints make seeking cheap.

-- The rows of `meta`, `answer`, `user`, `api_key` and `resume_address` cannot be made again from the log, so each
-- has a checksum of its other columns.
CREATE TABLE meta(
  key TEXT PRIMARY KEY NOT NULL,
  value TEXT NOT NULL,
  sum BLOB NOT NULL
);

CREATE TABLE session(
  pk INTEGER PRIMARY KEY,
  id BLOB NOT NULL UNIQUE,
  tenant TEXT NOT NULL,
  app TEXT NOT NULL,
  user BLOB NOT NULL,
  agent TEXT NOT NULL,
  name_lookup BLOB,
  name BLOB,
  labels BLOB,
  status TEXT NOT NULL,
  closed INTEGER NOT NULL,
  deleted INTEGER NOT NULL,
  listed INTEGER NOT NULL,
  ttl_mode TEXT,
  ttl_ms INTEGER,
  expires_at INTEGER,
  hidden_ttl_ms INTEGER,
  hidden_expires_at INTEGER,
  revision INTEGER NOT NULL,
  head BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  last_at INTEGER NOT NULL,
  tasks_opened INTEGER NOT NULL,
  requests_started INTEGER NOT NULL,
  items_appended INTEGER NOT NULL,
  last_log INTEGER NOT NULL,
  erased_log INTEGER NOT NULL,
  origin INTEGER NOT NULL,
  origin_seq INTEGER NOT NULL
);
CREATE UNIQUE INDEX session_by_name ON session(tenant, app, user, name_lookup);
CREATE INDEX session_by_tenant ON session(tenant, listed);
CREATE INDEX session_by_app ON session(tenant, app, listed);
CREATE INDEX session_by_user ON session(tenant, user, listed);
CREATE INDEX session_by_expiry ON session(expires_at);
CREATE INDEX session_by_hidden_expiry ON session(hidden_expires_at);
CREATE INDEX session_by_origin ON session(origin);

-- The listed sessions in the order of their last change. An index on `session.last_at` would cost every commit a few
-- pages. This table lags behind the log: `updates_until` in `meta` is the row of the log up to which it is right.
CREATE TABLE session_update(
  session INTEGER PRIMARY KEY,
  tenant TEXT NOT NULL,
  app TEXT NOT NULL,
  user BLOB NOT NULL,
  at INTEGER NOT NULL
);
CREATE INDEX session_update_by_tenant ON session_update(tenant, at);
CREATE INDEX session_update_by_app ON session_update(tenant, app, at);
CREATE INDEX session_update_by_user ON session_update(tenant, user, at);

CREATE TABLE log(
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  prev INTEGER NOT NULL,
  links BLOB NOT NULL,
  exchanges BLOB NOT NULL,
  record BLOB NOT NULL,
  bodies BLOB NOT NULL
);

CREATE TABLE waypoint(
  session INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  items_until INTEGER NOT NULL,
  log INTEGER NOT NULL
);
CREATE INDEX waypoint_by_seq ON waypoint(session, seq);
CREATE INDEX waypoint_by_item ON waypoint(session, items_until);

CREATE TABLE rewind(
  session INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  items_kept INTEGER NOT NULL,
  items_until INTEGER NOT NULL
);
CREATE INDEX rewind_by_session ON rewind(session);

CREATE TABLE open_task(
  id BLOB PRIMARY KEY NOT NULL,
  session INTEGER NOT NULL,
  last_log INTEGER NOT NULL,
  body BLOB NOT NULL
);
CREATE INDEX open_task_by_session ON open_task(session);

CREATE TABLE closed_task(
  id BLOB PRIMARY KEY NOT NULL,
  session INTEGER NOT NULL,
  last_log INTEGER NOT NULL,
  body BLOB NOT NULL
);

CREATE TABLE task_state(
  task BLOB PRIMARY KEY NOT NULL,
  session INTEGER NOT NULL,
  request BLOB NOT NULL,
  log INTEGER NOT NULL,
  value BLOB NOT NULL
);
CREATE INDEX task_state_by_session ON task_state(session);

-- The number and the newest of the exchanges of each agent path; `log` is the row that ended the newest, and
-- `state` the row with the private state that the memory gives back, or 0.
CREATE TABLE memory(
  session INTEGER NOT NULL,
  path TEXT NOT NULL,
  exchanges INTEGER NOT NULL,
  record INTEGER NOT NULL,
  request BLOB NOT NULL,
  log INTEGER NOT NULL,
  state INTEGER NOT NULL,
  PRIMARY KEY (session, path)
);

CREATE TABLE live_request(
  id BLOB PRIMARY KEY NOT NULL,
  session INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  agent TEXT NOT NULL,
  queued INTEGER NOT NULL,
  lease_until INTEGER,
  body BLOB NOT NULL
);
CREATE INDEX live_request_by_session ON live_request(session);
CREATE INDEX live_request_by_agent ON live_request(tenant, agent, queued, id);
CREATE INDEX live_request_by_lease ON live_request(lease_until);

CREATE TABLE ended_request(
  id BLOB PRIMARY KEY NOT NULL,
  session INTEGER NOT NULL,
  body BLOB NOT NULL
);

-- Few requests have a parent: a table of their own keeps the others cheap.
CREATE TABLE child_request(
  parent BLOB NOT NULL,
  child BLOB NOT NULL
);
CREATE INDEX child_request_by_parent ON child_request(parent);

-- The newest requests of each session that chat calls started, by the first eight bytes of the digest of their
-- input. The key is `session * 256 + number of the request % 256`, so that a session has at most 256 rows.
CREATE TABLE chat_request(
  pk INTEGER PRIMARY KEY,
  digest INTEGER NOT NULL,
  log INTEGER NOT NULL
);
CREATE INDEX chat_request_by_digest ON chat_request(digest, log);

-- `risk` is 0 for high, 1, 2, and 3 for none; without a deadline, `deadline` is the largest integer. So
-- the order of urgency is the order of an index, and neither changes while the hold is open.
CREATE TABLE open_hold(
  pk INTEGER PRIMARY KEY,
  id BLOB NOT NULL UNIQUE,
  session INTEGER NOT NULL,
  request BLOB NOT NULL,
  tenant TEXT NOT NULL,
  user BLOB NOT NULL,
  agent TEXT NOT NULL,
  risk INTEGER NOT NULL,
  deadline INTEGER NOT NULL,
  body BLOB NOT NULL
);
CREATE INDEX open_hold_by_request ON open_hold(request);
CREATE INDEX open_hold_by_session ON open_hold(session);
CREATE INDEX open_hold_by_tenant ON open_hold(tenant);
CREATE INDEX open_hold_by_urgency ON open_hold(tenant, risk, deadline);
CREATE INDEX open_hold_by_user ON open_hold(tenant, user, risk, deadline);
CREATE INDEX open_hold_by_deadline ON open_hold(deadline);

-- `result` is what came of the tool call that the hold was about.
CREATE TABLE closed_hold(
  pk INTEGER PRIMARY KEY,
  id BLOB NOT NULL UNIQUE,
  session INTEGER NOT NULL,
  request BLOB NOT NULL,
  tenant TEXT NOT NULL,
  user BLOB NOT NULL,
  agent TEXT NOT NULL,
  call BLOB,
  body BLOB NOT NULL,
  result BLOB
);
CREATE INDEX closed_hold_by_request ON closed_hold(request);
CREATE INDEX closed_hold_by_session ON closed_hold(session);
CREATE INDEX closed_hold_by_tenant ON closed_hold(tenant);
CREATE INDEX closed_hold_by_user ON closed_hold(tenant, user);
CREATE INDEX closed_hold_by_call ON closed_hold(call);

CREATE TABLE state(
  session INTEGER NOT NULL,
  key TEXT NOT NULL,
  version INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  value BLOB NOT NULL,
  PRIMARY KEY (session, key)
);

-- A removed key stays as a row without a value, so that its versions never start again.
CREATE TABLE shared(
  tenant TEXT NOT NULL,
  app TEXT NOT NULL,
  user BLOB NOT NULL,
  key TEXT NOT NULL,
  version INTEGER NOT NULL,
  value BLOB,
  session BLOB NOT NULL,
  revision INTEGER NOT NULL,
  principal TEXT NOT NULL,
  at INTEGER NOT NULL,
  request BLOB,
  PRIMARY KEY (tenant, app, user, key)
);

CREATE TABLE answer(
  key BLOB PRIMARY KEY NOT NULL,
  fingerprint BLOB NOT NULL,
  session BLOB NOT NULL,
  revision INTEGER NOT NULL,
  body BLOB NOT NULL,
  expires_at INTEGER NOT NULL,
  sum BLOB NOT NULL
);
CREATE INDEX answer_by_expiry ON answer(expires_at);
CREATE INDEX answer_by_session ON answer(session);

CREATE TABLE blob(
  user BLOB NOT NULL,
  digest BLOB NOT NULL,
  refs INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (user, digest)
);

-- Payloads that are to be removed from the log, the row at which that goes on, backwards, and the row before which
-- it ends.
CREATE TABLE erasure(
  session INTEGER PRIMARY KEY,
  payloads TEXT NOT NULL,
  log INTEGER NOT NULL,
  floor INTEGER NOT NULL
);

-- Who is behind a pseudonym. The only place that knows the name.
CREATE TABLE user(
  id BLOB PRIMARY KEY NOT NULL,
  tenant TEXT NOT NULL,
  lookup BLOB NOT NULL,
  name BLOB NOT NULL,
  sum BLOB NOT NULL
);
CREATE UNIQUE INDEX user_by_name ON user(tenant, lookup);

CREATE TABLE api_key(
  id BLOB PRIMARY KEY NOT NULL,
  tenant TEXT NOT NULL,
  secret BLOB NOT NULL UNIQUE,
  body BLOB NOT NULL,
  sum BLOB NOT NULL
);
CREATE INDEX api_key_by_tenant ON api_key(tenant);

-- Where decisions for an agent are pushed to.
CREATE TABLE resume_address(
  tenant TEXT NOT NULL,
  agent TEXT NOT NULL,
  body BLOB NOT NULL,
  sum BLOB NOT NULL,
  PRIMARY KEY (tenant, agent)
);

CREATE TABLE tenant_log(
  tenant TEXT NOT NULL,
  seq INTEGER NOT NULL,
  record BLOB NOT NULL,
  PRIMARY KEY (tenant, seq)
);
