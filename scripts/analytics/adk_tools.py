"""ADK's tools over the Conversational Analytics API against a server. Prints a line for each thing that works."""

import asyncio
import os

from google.adk.integrations.bigquery.data_insights_tool import ask_data_insights
from google.adk.tools import _gda_stream_util
from google.adk.tools.data_agent import data_agent_tool
from google.adk.tools.data_agent.config import DataAgentToolConfig
from google.oauth2.credentials import Credentials

URL = os.environ["STATEHOLD_URL"]
CREDENTIALS = Credentials(token=os.environ["CLIENT_KEY"])
SETTINGS = DataAgentToolConfig(api_endpoint=URL, enable_data_agent_modification=True)
PARENT = "projects/acme/locations/us"


def final(result):
    assert result["status"] == "SUCCESS", result
    text = result["response"][-1]["text"]
    assert text["textType"] == "FINAL_RESPONSE", text
    return "".join(text["parts"])


def ask(agent, query):
    name = f"{PARENT}/dataAgents/{agent}"
    return data_agent_tool.ask_data_agent(
        name, query, credentials=CREDENTIALS, settings=SETTINGS, tool_context=None)


assert final(ask("analyst", "hello")) == "user: hello"
print("ADK: ask_data_agent")

failed = ask("nobody", "hello")
assert failed["status"] == "ERROR", failed
print("ADK: ask_data_agent names its error")

# This tool takes no address: it always asks Google.
_gda_stream_util.get_gda_endpoint = lambda *_, **__: URL
tables = [{"projectId": "p", "datasetId": "d", "tableId": "t"}]


class Rows:
    max_query_result_rows = 50


told = final(ask_data_insights("acme", "how many?", tables, credentials=CREDENTIALS, settings=Rows()))
assert told.startswith("system: ") and "NO CHARTS" in told and '"tableId":"t"' in told, told
assert told.endswith("user: how many?"), told
print("ADK: ask_data_insights")
