"""A session service of ADK that keeps its sessions in a Statehold server, over the routes of docs/adk.md.

It is a test of those routes, and short enough to be the beginning of a real one. The revision of a session, which
answers carry as `ETag`, is what ADK calls its storage update marker.
"""

import json
from urllib.parse import quote

import httpx
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.base_session_service import BaseSessionService, ListSessionsResponse
from google.adk.sessions.session import Session


class StateholdSessionService(BaseSessionService):
    def __init__(self, url, key=None):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=60)

    async def create_session(self, *, app_name, user_id, state=None, session_id=None):
        body = {"state": state or {}} | ({"sessionId": session_id} if session_id else {})
        answer = await self.send("POST", sessions(app_name, user_id), body)
        if answer.status_code == 409:
            raise AlreadyExistsError(answer.json()["detail"])
        return loaded(answer)

    async def get_session(self, *, app_name, user_id, session_id, config=None):
        asked = {}
        if config and config.num_recent_events is not None:
            asked["num_recent_events"] = config.num_recent_events
        if config and config.after_timestamp is not None:
            asked["after_timestamp"] = config.after_timestamp
        answer = await self.send("GET", sessions(app_name, user_id, session_id), params=asked)
        return None if answer.status_code == 404 else loaded(answer)

    async def list_sessions(self, *, app_name, user_id=None):
        path = f"/apps/{quote(app_name, safe='')}/sessions" if user_id is None else sessions(app_name, user_id)
        found = []
        while path:
            answer = await self.send("GET", path)
            require_success(answer)
            found += [Session.model_validate(each) for each in answer.json()]
            path = answer.links.get("next", {}).get("url")
        found.sort(key=lambda session: session.last_update_time)
        return ListSessionsResponse(sessions=found)

    async def delete_session(self, *, app_name, user_id, session_id):
        require_success(await self.send("DELETE", sessions(app_name, user_id, session_id)))

    async def get_user_state(self, *, app_name, user_id):
        answer = await self.send("GET", sessions(app_name, user_id).removesuffix("sessions") + "state")
        require_success(answer)
        return answer.json()

    async def append_event(self, session, event):
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        # Values that are not JSON become text: better than to lose the event.
        sent = event.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=str)
        body = {"event": sent} | ({"revision": int(session._storage_update_marker)}
                                  if session._storage_update_marker else {})
        path = sessions(session.app_name, session.user_id, session.id) + "/events"
        answer = await self.send("POST", path, body)
        if answer.status_code == 404:
            raise SessionNotFoundError(answer.json()["detail"])
        if answer.headers.get("x-statehold-error") == "revision_mismatch":
            raise StaleSessionError(answer.json()["detail"])
        require_success(answer)
        if all(event.id != known.id for known in session.events):
            self._commit_event_to_session(session, event)
        session.last_update_time = answer.json()["lastUpdateTime"]
        session._storage_update_marker = str(answer.json()["revision"])
        return event

    async def send(self, method, path, body=None, params=None):
        content = None if body is None else json.dumps(body, default=str)
        headers = {"Content-Type": "application/json"}
        return await self.http.request(method, path, content=content, params=params, headers=headers)


def sessions(app, user, session=None):
    parts = ["apps", app, "users", user, "sessions"] + ([session] if session else [])
    return "/" + "/".join(quote(part, safe="") for part in parts)


def require_success(answer):
    """Raises the words of the server, which say what to do."""
    if not answer.is_success:
        raise ValueError(f"{answer.status_code}: {answer.json()['detail']}")


def loaded(answer):
    require_success(answer)
    session = Session.model_validate(answer.json())
    session._storage_update_marker = answer.headers["etag"].strip('"')
    return session
