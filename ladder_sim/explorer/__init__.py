"""The what-if explorer: a web page that shows what each variant does, and why, while you move the controls.

One query string says everything that a page shows (`state.State`). The page's script writes it from the controls
(``assets/explorer.js``), every view is a function of it (`headline`, `figures`, `background`), and so is every file
that the page offers (`downloads`). `server` puts them on a port of this machine; `offline` writes a page that needs no
server.
"""
