"""LangChain's ChatOpenAI alone, and in a graph of LangGraph that keeps its messages. langchain_python.py URL"""

import sys
from collections import defaultdict

from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

import link

TALKS, GRAPHS = defaultdict(list), {}


def ask(mode, talk, text, model, key):
    chat = ChatOpenAI(base_url=sys.argv[1], api_key=key, model=model)
    if mode.startswith("graph"):
        return ask_graph(chat, "stream" in mode, talk, text)
    messages = [*TALKS[talk], HumanMessage(text)]
    if mode == "stream":
        said = "".join(chunk.text for chunk in chat.stream(messages))
    else:
        said = chat.invoke(messages).text
    TALKS[talk] += [messages[-1], AIMessage(said)]
    return said


def ask_graph(chat, is_streamed, talk, text):
    if talk not in GRAPHS:
        graph = StateGraph(MessagesState)
        graph.add_node("chat", lambda state: {"messages": [chat.invoke(state["messages"])]})
        graph.add_edge(START, "chat")
        GRAPHS[talk] = graph.compile(checkpointer=InMemorySaver())
    graph, config = GRAPHS[talk], {"configurable": {"thread_id": talk}}
    # A run that failed has kept its message, and goes on without a new one.
    sent = None if graph.get_state(config).next else {"messages": [HumanMessage(text)]}
    if not is_streamed:
        return graph.invoke(sent, config)["messages"][-1].text
    return "".join(chunk.text for chunk, _ in graph.stream(sent, config, stream_mode="messages"))


link.serve(ask)
