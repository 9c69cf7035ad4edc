"""A whole approval with the generated Python client: approve.py URL CLIENT_KEY WORKER_KEY APPROVER_KEY"""

import sys

from statehold_client import AuthenticatedClient
from statehold_client.api.holds import decide_hold, get_hold, list_holds, open_hold
from statehold_client.api.requests import claim_requests, complete_request, release_lease, start_request
from statehold_client.api.sessions import create_session, get_session, list_messages
from statehold_client.models import (
    ActionIn, Claimed, ClaimIn, CompleteIn, Decided, DecisionIn, DecisionKind, Hold, HoldIn, HoldKind, HoldPage,
    HoldStatus, LeaseIn, MessagePage, Problem, ProblemCode, ReleaseIn, Request, RequestIn, RequestStatus, Session,
    SessionIn)


def caller(key):
    return AuthenticatedClient(base_url=sys.argv[1], token=key, raise_on_unexpected_status=True)


def is_a(kind, answer):
    assert isinstance(answer, kind), answer
    return answer


client, worker, approver = map(caller, sys.argv[2:])
new = SessionIn(app="shop", user="ann", agent="payer")
session = is_a(Session, create_session.sync(client=client, body=new, idempotency_key="order-17"))
again = is_a(Session, create_session.sync(client=client, body=new, idempotency_key="order-17"))
assert again.id == session.id

work = RequestIn(input_="Pay invoice 17.", agent="payer", lease=LeaseIn(ttl_seconds=60))
request = is_a(Request, start_request.sync(session.id, client=worker, body=work))
pay = ActionIn(tool="pay", args={"invoice": 17, "amount": "120.00"})
asked = HoldIn(fence=request.fence, kind=HoldKind.APPROVAL, title="Pay invoice 17?", action=pay)
opened = is_a(Hold, open_hold.sync(request.id, client=worker, body=asked))
is_a(Request, release_lease.sync(request.id, client=worker, body=ReleaseIn(fence=request.fence)))

inbox = is_a(HoldPage, list_holds.sync(client=approver))
assert [hold.id for hold in inbox.holds] == [opened.id], inbox
hold = is_a(Hold, get_hold.sync(opened.id, client=approver))
assert hold.may_decide and hold.action.args == {"invoice": 17, "amount": "120.00"}, hold

other = DecisionIn(decision=DecisionKind.APPROVE, digest="sha256:" + "0" * 64)
refusal = is_a(Problem, decide_hold.sync(hold.id, client=approver, body=other))
assert (refusal.status, refusal.code) == (409, ProblemCode.DIGEST_MISMATCH), refusal
decision = DecisionIn(decision=DecisionKind.APPROVE, digest=hold.action.digest, comment="Checked.")
decided = is_a(Decided, decide_hold.sync(hold.id, client=approver, body=decision))
assert decided.status == HoldStatus.APPROVED, decided
late = is_a(Problem, decide_hold.sync(hold.id, client=approver, body=DecisionIn(decision=DecisionKind.REJECT)))
assert late.code == ProblemCode.HOLD_DECIDED and late["hold_status"] == "approved", late

claimed = is_a(Claimed, claim_requests.sync(
    client=worker, body=ClaimIn(agent="payer", request_id=request.id, wait_seconds=30)))
(claim,) = claimed.requests
assert [(one.status, one.decision.comment) for one in claim.decisions] == [(HoldStatus.APPROVED, "Checked.")], claim
done = CompleteIn(fence=claim.fence, output="Invoice 17 is paid.")
stale = CompleteIn(fence=request.fence, output="Invoice 17 is paid.")
refusal = is_a(Problem, complete_request.sync(request.id, client=worker, body=stale))
assert refusal.code == ProblemCode.STALE_FENCE, refusal
completed = is_a(Request, complete_request.sync(request.id, client=worker, body=done))
assert completed.status == RequestStatus.COMPLETED, completed

page = is_a(MessagePage, list_messages.sync(session.id, client=client))
assert [message.content for message in page.messages] == ["Pay invoice 17.", "Invoice 17 is paid."], page

hidden = is_a(Problem, get_session.sync(session.id, client=approver))
assert (hidden.status, hidden.code) == (403, ProblemCode.FORBIDDEN), hidden
unknown = is_a(Problem, get_session.sync(session.id, client=caller("shk_none")))
assert (unknown.status, unknown.code) == (401, ProblemCode.UNAUTHENTICATED), unknown
