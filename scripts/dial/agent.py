"""Applications made with DIAL's SDK, which do what applications do: agent.py PORT

The last user message says what to do. The deployment `strict` is the SDK as it is: it refuses requests with members that
it does not know. It keeps what it was sent: GET /heard
"""

import asyncio
import re
import sys

import uvicorn
from aidial_sdk import DIALApp
from aidial_sdk.chat_completion import ChatCompletion, Request, Response, Role, Status
from aidial_sdk.chat_completion.chunks import ArbitraryChunk
from aidial_sdk.exceptions import HTTPException, InvalidRequestError

heard, waiting = [], asyncio.Event()
CANARY = "canary-5f0c"


async def transcript(choice, response, request):
    """Everything that an application can say, in one answer."""
    with choice.create_stage("Coordination") as stage:
        stage.append_content("Routing to GPA")
        with stage.create_stage("child") as child:
            child.append_name(" x")
            child.add_attachment(type="text/plain", title="t", data="d")
    choice.append_content("Hel")
    choice.append_content("lo")
    choice.add_attachment(type="text/csv", title="r", url="files/b/r.csv")
    choice.set_state({"is_gpa": True, "gpa_messages": {}})


async def stages(choice, response, request):
    """Stages in stages, with names that come late, in an order of their own."""
    outer, later = choice.create_stage("outer"), choice.create_stage()
    outer.open()
    later.open()
    inner = outer.create_stage("inner")
    inner.open()
    later.append_name("named ")
    choice.append_content("Words between. ")
    inner.append_content("in the middle")
    later.append_name("later")
    deepest = inner.create_stage("deepest")
    deepest.open()
    deepest.append_content("at the bottom")
    deepest.close(Status.FAILED)
    inner.close()
    later.append_content("side by side")
    later.close()
    outer.add_attachment(type="text/plain", title="one", data="1")
    outer.add_attachment(type="text/plain", title="two", url="files/b/two.txt")
    outer.close()
    choice.append_content("Done.")


async def failing(choice, response, request):
    """A step that fails, in an answer that does not."""
    stage = choice.create_stage("Try it")
    stage.open()
    stage.append_content("it broke")
    stage.close(Status.FAILED)
    choice.append_content("It did not work.")


async def open_stages(choice, response, request):
    """Stages that are never closed, as the SDK allows."""
    outer = choice.create_stage("forgotten")
    outer.open()
    outer.create_stage("below it").open()
    choice.append_content("Nobody closed them.")


async def odd_chunks(choice, response, request):
    """Chunks that say several things at once, as other programs than the SDK send them."""
    def send(**delta):
        choice.send_chunk(ArbitraryChunk({"choices": [{"index": 0, "finish_reason": None, "delta": delta}]}))

    first = {"index": 0, "name": "all at once", "content": "begun, ",
             "attachments": [{"index": 0, "title": "file", "type": "text/plain", "data": "d"}]}
    send(custom_content={"stages": [first]})
    send(content="One ", custom_content={"stages": [{"index": 0, "content": "ended", "status": "completed"}]})
    send(custom_content={"stages": [{"index": 7, "name": "a gap", "status": "completed"}]})
    choice.append_content("chunk.")


async def files(choice, response, request):
    """Files of every kind, and the files that it was sent."""
    custom = request.messages[-1].custom_content
    told = [file.url or file.data for file in custom.attachments] if custom and custom.attachments else []
    choice.append_content(f"Got: {', '.join(told) or 'nothing'}.")
    choice.add_attachment(type="text/plain", title="data", data="some data")
    choice.add_attachment(type="image/png", title="address", url="files/b/p.png")
    choice.add_attachment(title="source", data="quoted", reference_type="text/html", reference_url="https://source.test/")


async def count(choice, response, request):
    """What it remembers is in its state. Names in it mean nothing to others."""
    states = [message.custom_content.state for message in request.messages
              if message.role == Role.ASSISTANT and message.custom_content and message.custom_content.state]
    turns = (states[-1]["turns"] if states else 0) + 1
    history = [{"index": 3, "role": "tool", "content": f"{CANARY} {turn}"} for turn in range(turns)]
    with choice.create_stage("Count") as stage:
        stage.append_content(f"turn {turns}")
    choice.append_content(f"This is turn {turns}.")
    choice.set_state({"turns": turns, "index": 5, "is_gpa": False, "list": history, "text": "ä\u2028\\u0041"})


async def remember(choice, response, request):
    """It tells others of a place, and says what others told it: that stands in a marked block before the message."""
    text = request.messages[-1].content
    told = re.match(r"\[shared context\]\n(.*)\n\[/shared context\]\n\n", text)
    choice.append_content(f"I was told {told[1] if told else 'nothing'}.")
    choice.set_state({"shared_context": {"place": text.split()[-1]}})


async def two_states(choice, response, request):
    """A state that is set twice: the second time is an error of the application, after the first was sent."""
    choice.append_content("Twice")
    choice.set_state({"first": True})
    choice.set_state({"second": True})


async def no_words(choice, response, request):
    """An answer without a word."""
    choice.set_state({"silent": True})


async def break_off(choice, response, request):
    """An error after the first words, with a stage open."""
    stage = choice.create_stage("half done")
    stage.open()
    choice.append_content("The beginning")
    await response.aflush()
    raise HTTPException("the model has gone", status_code=500, code="model_gone", display_message="Try again later.")


async def slowly(choice, response, request):
    """Some words now, and the others when it is told to go on."""
    with choice.create_stage("Waiting") as stage:
        choice.append_content("First. ")
        await response.aflush()
        await asyncio.wait_for(waiting.wait(), 30)
        stage.append_content("over")
    choice.append_content("Last.")


async def usage(choice, response, request):
    choice.append_content("Counted.")


async def echo(choice, response, request):
    choice.append_content(f"You said: {request.messages[-1].content}")


DOES = {
    "Transcript": transcript, "Stages": stages, "Fail a step": failing, "Leave open": open_stages,
    "Odd chunks": odd_chunks, "Files": files, "Count": count, "Remember": remember, "Two states": two_states, "No words": no_words,
    "Break off": break_off, "Slowly": slowly, "Usage": usage,
}


class Application(ChatCompletion):
    async def chat_completion(self, request: Request, response: Response):
        headers = {name: value for name, value in request.headers.items()
                   if name.startswith(("x-", "traceparent", "idempotency", "content-type"))}
        heard.append({
            "deployment": request.deployment_id, "version": request.api_version, "key": request.api_key,
            "token": request.bearer_token, "headers": headers, "body": await request.original_request.json()})
        content = request.messages[-1].content
        text = content if isinstance(content, str) else "".join(part.text for part in content if part.type == "text")
        text = text.rsplit("[/shared context]\n\n", 1)[-1]
        if text.startswith("Refuse"):
            raise InvalidRequestError("there are too many of them", code="too_many", display_message="Ask for fewer.")
        if text.startswith("Busy"):
            raise HTTPException("busy", status_code=429, headers={"Retry-After": "7"})
        if text.startswith("Crash"):
            raise ValueError(f"{CANARY} in an error of the application")
        does = next((does for said, does in DOES.items() if text.startswith(said)), echo)
        with response.create_single_choice() as choice:
            await does(choice, response, request)
        if does in (transcript, usage):
            response.set_usage(10, 5)
            response.add_usage_per_model("gpt-4o", 10, 5)
            response.set_discarded_messages([1])


app = DIALApp(add_healthcheck=True)
app.add_chat_completion("strict", Application())
app.add_api_route("/heard", lambda: heard)


@app.post("/go-on")
async def go_on():
    waiting.set()


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
