"""The explorer: a web page that asks one question, answers it with an interval, and shows why.

One query string is all state (`state.State`). The answer (`page`) and every view (`views.VIEWS`) are functions of it,
and so is every file that the page offers; `answers` asks the simulator, `controls` has the lists of the question and
the sheet of settings. The page's script (``assets/page.js``) changes the query and puts on the page what comes back.
`server` answers on a port of this machine, `export` writes the answers into a folder that needs no server.
"""
